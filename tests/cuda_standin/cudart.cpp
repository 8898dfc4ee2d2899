// A stand-in for the CUDA runtime: the documented interface that torch and NCCL look up, without a GPU.
//
// Device memory is a memfd, which other processes can map (CUDA IPC). Each stream is a queue with a thread that runs
// its work in order. Events are marks in that queue. Kernels and every other function of the interface, which the build
// adds, answer cudaErrorNotSupported.
//
// One mutex guards the state of the process. Nothing is freed at exit, because threads of torch outlive main().

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "devices.h"
#include "faults.h"

#ifndef CUDA_VERSION  // as cudaRuntimeGetVersion reports it; the Makefile takes it from torch
#define CUDA_VERSION 13000
#endif

#define EXPORT extern "C" __attribute__((visibility("default")))

typedef int cudaError_t;
// The numbers of cudaError_t (CUDA Runtime API, Error Handling).
enum {
  SUCCESS = 0,
  INVALID_VALUE = 1,
  MEMORY_ALLOCATION = 2,
  INITIALIZATION = 3,
  DEVICES_UNAVAILABLE = 46,
  NO_DEVICE = 100,
  INVALID_DEVICE = 101,
  ECC_UNCORRECTABLE = 214,
  INVALID_HANDLE = 400,
  NOT_READY = 600,
  PEER_ACCESS_ALREADY = 704,
  ILLEGAL_ADDRESS = 700,
  LAUNCH_FAILURE = 719,
  NOT_SUPPORTED = 801,
  SYSTEM_NOT_READY = 802,
};
struct ErrorText {
  int code;
  const char *name, *text;
};
static const ErrorText ERRORS[] = {
    {SUCCESS, "cudaSuccess", "no error"},
    {INVALID_VALUE, "cudaErrorInvalidValue", "invalid argument"},
    {MEMORY_ALLOCATION, "cudaErrorMemoryAllocation", "out of memory"},
    {INITIALIZATION, "cudaErrorInitializationError", "initialization error"},
    {DEVICES_UNAVAILABLE, "cudaErrorDevicesUnavailable", "CUDA-capable device(s) is/are busy or unavailable"},
    {NO_DEVICE, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {INVALID_DEVICE, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {ECC_UNCORRECTABLE, "cudaErrorECCUncorrectable", "uncorrectable ECC error encountered"},
    {INVALID_HANDLE, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {NOT_READY, "cudaErrorNotReady", "device not ready"},
    {ILLEGAL_ADDRESS, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {PEER_ACCESS_ALREADY, "cudaErrorPeerAccessAlreadyEnabled", "peer access is already enabled"},
    {LAUNCH_FAILURE, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {NOT_SUPPORTED, "cudaErrorNotSupported", "operation not supported"},
    {SYSTEM_NOT_READY, "cudaErrorSystemNotReady", "system not yet initialized"},
};
// Faults that strike when a GPU is used first (busy, fabric manager), and those that a running GPU reports.
static const struct { const char* kind; int code; } FIRST_USE_FAULTS[] = {
    {"gpu-busy", DEVICES_UNAVAILABLE}, {"fabric-not-ready", SYSTEM_NOT_READY}};
static const struct { const char* kind; int code; } RUNNING_FAULTS[] = {
    {"ecc", ECC_UNCORRECTABLE}, {"illegal-address", ILLEGAL_ADDRESS}};

static std::mutex& state_mutex = *new std::mutex;
static std::condition_variable& state_changed = *new std::condition_variable;

// ---- Devices ----

struct Allocation {
  size_t size;
  int device;  // -1: pinned memory of the host
  int file;    // the memfd; -1 for memory of the host and of other processes
};
static std::map<char*, Allocation>& allocations = *new std::map<char*, Allocation>;
static MemoryTable* memory_table;
static std::vector<int>& visible_gpus = *new std::vector<int>;
static bool is_used[MOST_GPUS];
static int initialised_by;  // process
static thread_local int current_device;
static thread_local cudaError_t last_error;

static cudaError_t remember(cudaError_t error) {
  if (error != SUCCESS && error != NOT_READY) last_error = error;
  return error;
}

// Fill visible_gpus from CUDA_VISIBLE_DEVICES: numbers or UUIDs. The first unknown entry ends the list.
static void read_visible_gpus() {
  int count = gpus_of_node();
  const char* list = getenv("CUDA_VISIBLE_DEVICES");
  if (!list) {
    for (int gpu = 0; gpu < count; gpu++) visible_gpus.push_back(gpu);
    return;
  }
  std::istringstream entries(list);
  for (std::string entry; std::getline(entries, entry, ',');) {
    int gpu = 0;
    while (gpu < count && entry != std::to_string(gpu) && (entry.size() < 5 || uuid_text(gpu).rfind(entry, 0) != 0)) gpu++;
    if (gpu == count) return;
    visible_gpus.push_back(gpu);
  }
}

// Load the driver. A child that was forked after that cannot use CUDA, as with the real one.
static cudaError_t initialise() {
  std::lock_guard<std::mutex> lock(state_mutex);
  if (initialised_by) return initialised_by == getpid() ? SUCCESS : INITIALIZATION;
  double seconds;
  if (has_fault("slow-driver", -1, &seconds)) usleep(useconds_t(seconds * 1e6));
  read_visible_gpus();
  memory_table = new MemoryTable;
  initialised_by = getpid();
  return SUCCESS;
}

static cudaError_t check_device(int device) {
  if (cudaError_t error = initialise()) return error;
  if (visible_gpus.empty()) return NO_DEVICE;
  return device < 0 || device >= int(visible_gpus.size()) ? INVALID_DEVICE : SUCCESS;
}

// Make the context of a device.
static cudaError_t use_device(int device) {
  if (cudaError_t error = check_device(device)) return error;
  for (auto& fault : FIRST_USE_FAULTS)
    if (has_fault(fault.kind, visible_gpus[device])) return fault.code;
  is_used[device] = true;
  return SUCCESS;
}

static cudaError_t running_fault(int device) {
  if (device < int(visible_gpus.size()))
    for (auto& fault : RUNNING_FAULTS)
      if (has_fault(fault.kind, visible_gpus[device])) return fault.code;
  return SUCCESS;
}

EXPORT cudaError_t cudaGetDeviceCount(int* count) {
  *count = 0;
  if (cudaError_t error = initialise()) return remember(error);
  *count = int(visible_gpus.size());
  return remember(*count ? SUCCESS : NO_DEVICE);
}
EXPORT cudaError_t cudaGetDevice(int* device) {
  if (cudaError_t error = initialise()) return remember(error);
  *device = current_device;
  return SUCCESS;
}
EXPORT cudaError_t cudaSetDevice(int device) {
  if (cudaError_t error = use_device(device)) return remember(error);
  current_device = device;
  return SUCCESS;
}
EXPORT cudaError_t cudaDriverGetVersion(int* version) { return *version = CUDA_VERSION, SUCCESS; }
EXPORT cudaError_t cudaRuntimeGetVersion(int* version) { return *version = CUDA_VERSION, SUCCESS; }

// Where members of cudaDeviceProp lie, which CUDA 13 changed (driver_types.h of both).
struct PropertyOffsets {
  size_t size, processors, ecc, bus, l2, threads, shared_memory, registers, shared_memory_optin, concurrent, unified;
};
static constexpr PropertyOffsets CUDA_12 = {1032, 388, 580, 584, 616, 624, 640, 648, 696, 576, 604};
static constexpr PropertyOffsets CUDA_13 = {1008, 384, 564, 568, 596, 604, 624, 632, 672, 560, 588};

static cudaError_t properties_of(char* properties, int device) {
  if (cudaError_t error = check_device(device)) return remember(error);
  const PropertyOffsets& at = CUDA_VERSION >= 13000 ? CUDA_13 : CUDA_12;
  memset(properties, 0, at.size);
  auto set = [&](size_t offset, int value) { memcpy(properties + offset, &value, sizeof value); };
  auto set_size = [&](size_t offset, size_t value) { memcpy(properties + offset, &value, sizeof value); };
  int gpu = visible_gpus[device];
  strcpy(properties, GPU_NAME);
  uuid_of_gpu(gpu, reinterpret_cast<unsigned char*>(properties) + 256);
  set_size(288, memory_of_gpu());
  set_size(296, 48 << 10);  // shared memory of a block
  set(304, 65536);          // registers of a block
  set(308, 32);             // threads of a warp
  set(320, 1024);           // threads of a block
  for (int i = 0; i < 3; i++) set(324 + 4 * i, i < 2 ? 1024 : 64), set(336 + 4 * i, i ? 65535 : 2147483647);
  set(360, 9);  // compute capability 9.0
  set(at.processors, 132);
  set(at.ecc, 1);
  set(at.bus, bus_of_gpu(gpu));
  set(at.l2, 50 << 20);
  set(at.threads, 2048);
  set_size(at.shared_memory, 228 << 10);
  set(at.registers, 65536);
  set_size(at.shared_memory_optin, 227 << 10);
  set(at.concurrent, 1);
  set(at.unified, 1);
  return SUCCESS;
}
EXPORT cudaError_t cudaGetDeviceProperties(void* properties, int device) { return properties_of(static_cast<char*>(properties), device); }
EXPORT cudaError_t cudaGetDeviceProperties_v2(void* properties, int device) { return properties_of(static_cast<char*>(properties), device); }

EXPORT cudaError_t cudaDeviceGetAttribute(int* value, int attribute, int device) {
  if (cudaError_t error = check_device(device)) return remember(error);
  // cudaDeviceAttr: the numbers that torch asks for; 0 stands for "no" and for everything else.
  static const std::map<int, int> values = {{1, 1024}, {2, 1024}, {3, 1024}, {4, 64},   {5, 2147483647}, {6, 65535}, {7, 65535}, {8, 49152},
                                            {10, 32},  {12, 65536}, {13, 1980000}, {16, 132}, {32, 1}, {38, 50 << 20}, {39, 2048}, {41, 1},
                                            {75, 9},   {76, 0},   {78, 1},  {81, 233472}, {82, 65536}, {97, 232448}, {106, 32}};
  auto entry = values.find(attribute);
  *value = entry == values.end() ? 0 : entry->second;
  if (attribute == 33) *value = bus_of_gpu(visible_gpus[device]);
  return SUCCESS;
}
EXPORT cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  if (cudaError_t error = check_device(device)) return remember(error);
  snprintf(text, length, "0000:%02X:00.0", bus_of_gpu(visible_gpus[device]));
  return SUCCESS;
}
EXPORT cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) { return *can = device != peer, SUCCESS; }
EXPORT cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return SUCCESS; }
EXPORT cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) { return *least = 0, *greatest = -5, SUCCESS; }

EXPORT const char* cudaGetErrorString(cudaError_t code) {
  for (auto& error : ERRORS)
    if (error.code == code) return error.text;
  return "unrecognized error code";
}
EXPORT const char* cudaGetErrorName(cudaError_t code) {
  for (auto& error : ERRORS)
    if (error.code == code) return error.name;
  return "unrecognized error code";
}
EXPORT cudaError_t cudaGetLastError() {
  cudaError_t error = last_error;
  last_error = SUCCESS;
  return error;
}
EXPORT cudaError_t cudaPeekAtLastError() { return last_error; }
EXPORT cudaError_t cudaProfilerStart() { return SUCCESS; }
EXPORT cudaError_t cudaProfilerStop() { return SUCCESS; }

// ---- Streams and events ----

struct Mark {  // the moment that an event records
  bool is_done = false;
  double seconds = 0;
};
struct Event {
  std::shared_ptr<Mark> mark;
};
struct Stream {
  explicit Stream(int device, int priority = 0) : device(device), priority(priority) {}
  const int device, priority;
  std::deque<std::function<void()>> queue;
  bool is_busy = false, has_thread = false;
  std::condition_variable has_work;
};

static double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// The default stream of a device, for the handles 0 (legacy), 1 and 2 (per thread).
static Stream* default_stream(int device) {
  static Stream* streams[MOST_GPUS];
  if (!streams[device]) streams[device] = new Stream(device);
  return streams[device];
}
static Stream* stream_of(void* handle) {
  if (reinterpret_cast<uintptr_t>(handle) > 2) return static_cast<Stream*>(handle);
  std::lock_guard<std::mutex> lock(state_mutex);
  return default_stream(current_device);
}

static void run_queue(Stream* stream) {
  current_device = stream->device;
  std::unique_lock<std::mutex> lock(state_mutex);
  for (;;) {
    stream->has_work.wait(lock, [&] { return !stream->queue.empty() && !stream->is_busy; });
    auto work = std::move(stream->queue.front());
    stream->queue.pop_front();
    stream->is_busy = true;
    lock.unlock();
    work();
    lock.lock();
    stream->is_busy = false;
    state_changed.notify_all();
  }
}

// Queue work that must not run in the caller's thread, because it may block.
static void enqueue(Stream* stream, std::function<void()> work) {
  std::lock_guard<std::mutex> lock(state_mutex);
  stream->queue.push_back(std::move(work));
  if (!stream->has_thread) std::thread(run_queue, stream).detach();
  stream->has_thread = true;
  stream->has_work.notify_one();
}

// Run short work at once if the stream is idle, else queue it.
static void run_or_enqueue(Stream* stream, std::function<void()> work) {
  std::unique_lock<std::mutex> lock(state_mutex);
  if (stream->is_busy || !stream->queue.empty()) {
    lock.unlock();
    return enqueue(stream, std::move(work));
  }
  stream->is_busy = true;
  lock.unlock();
  work();
  lock.lock();
  stream->is_busy = false;
  if (!stream->queue.empty()) stream->has_work.notify_one();
  state_changed.notify_all();
}

static bool is_idle(Stream* stream) { return stream->queue.empty() && !stream->is_busy; }

static cudaError_t wait_for(Stream* stream) {
  std::unique_lock<std::mutex> lock(state_mutex);
  state_changed.wait(lock, [&] { return is_idle(stream); });
  return running_fault(stream->device);
}

// Streams are never freed: their threads may still look at them.
static std::vector<Stream*>& all_streams = *new std::vector<Stream*>;

EXPORT cudaError_t cudaStreamCreateWithPriority(void** handle, unsigned, int priority) {
  if (cudaError_t error = use_device(current_device)) return remember(error);
  auto* stream = new Stream(current_device, priority);
  std::lock_guard<std::mutex> lock(state_mutex);
  all_streams.push_back(stream);
  *handle = stream;
  return SUCCESS;
}
EXPORT cudaError_t cudaStreamCreate(void** handle) { return cudaStreamCreateWithPriority(handle, 0, 0); }
EXPORT cudaError_t cudaStreamCreateWithFlags(void** handle, unsigned) { return cudaStreamCreateWithPriority(handle, 0, 0); }
EXPORT cudaError_t cudaStreamDestroy(void*) { return SUCCESS; }
EXPORT cudaError_t cudaStreamGetPriority(void* handle, int* priority) { return *priority = stream_of(handle)->priority, SUCCESS; }
EXPORT cudaError_t cudaStreamSynchronize(void* handle) { return remember(wait_for(stream_of(handle))); }
EXPORT cudaError_t cudaStreamQuery(void* handle) {
  Stream* stream = stream_of(handle);
  std::lock_guard<std::mutex> lock(state_mutex);
  if (cudaError_t error = running_fault(stream->device)) return remember(error);
  return is_idle(stream) ? SUCCESS : NOT_READY;
}
EXPORT cudaError_t cudaDeviceSynchronize() {
  std::vector<Stream*> streams = {stream_of(nullptr)};
  {
    std::lock_guard<std::mutex> lock(state_mutex);
    for (auto* stream : all_streams)
      if (stream->device == current_device) streams.push_back(stream);
  }
  cudaError_t error = SUCCESS;
  for (auto* stream : streams) error = wait_for(stream);
  return remember(error);
}
EXPORT cudaError_t cudaLaunchHostFunc(void* handle, void (*function)(void*), void* data) {
  return enqueue(stream_of(handle), [=] { function(data); }), SUCCESS;
}
EXPORT cudaError_t cudaStreamAddCallback(void* handle, void (*callback)(void*, cudaError_t, void*), void* data, unsigned) {
  return enqueue(stream_of(handle), [=] { callback(handle, SUCCESS, data); }), SUCCESS;
}
// Nothing is ever captured into a graph.
EXPORT cudaError_t cudaStreamIsCapturing(void*, int* status) { return *status = 0, SUCCESS; }
static cudaError_t not_capturing(int* status, unsigned long long* id) {
  *status = 0;
  if (id) *id = 0;
  return SUCCESS;
}
EXPORT cudaError_t cudaStreamGetCaptureInfo(void*, int* status, unsigned long long* id, ...) { return not_capturing(status, id); }
EXPORT cudaError_t cudaStreamGetCaptureInfo_v2(void*, int* status, unsigned long long* id, ...) { return not_capturing(status, id); }
EXPORT cudaError_t cudaStreamGetCaptureInfo_v3(void*, int* status, unsigned long long* id, ...) { return not_capturing(status, id); }
EXPORT cudaError_t cudaThreadExchangeStreamCaptureMode(int*) { return SUCCESS; }

EXPORT cudaError_t cudaEventCreateWithFlags(void** handle, unsigned) {
  if (cudaError_t error = use_device(current_device)) return remember(error);
  return *handle = new Event, SUCCESS;
}
EXPORT cudaError_t cudaEventCreate(void** handle) { return cudaEventCreateWithFlags(handle, 0); }
EXPORT cudaError_t cudaEventDestroy(void* handle) { return delete static_cast<Event*>(handle), SUCCESS; }
EXPORT cudaError_t cudaEventRecord(void* handle, void* stream) {
  auto mark = std::make_shared<Mark>();
  {
    std::lock_guard<std::mutex> lock(state_mutex);
    static_cast<Event*>(handle)->mark = mark;
  }
  run_or_enqueue(stream_of(stream), [mark] {
    std::lock_guard<std::mutex> lock(state_mutex);
    mark->seconds = now();
    mark->is_done = true;
    state_changed.notify_all();
  });
  return SUCCESS;
}
EXPORT cudaError_t cudaEventRecordWithFlags(void* handle, void* stream, unsigned) { return cudaEventRecord(handle, stream); }
static std::shared_ptr<Mark> mark_of(void* handle) {
  std::lock_guard<std::mutex> lock(state_mutex);
  return static_cast<Event*>(handle)->mark;
}
EXPORT cudaError_t cudaEventQuery(void* handle) {
  auto mark = mark_of(handle);
  std::lock_guard<std::mutex> lock(state_mutex);
  if (cudaError_t error = running_fault(current_device)) return remember(error);
  return !mark || mark->is_done ? SUCCESS : NOT_READY;
}
static void wait_for_mark(std::shared_ptr<Mark> mark) {
  std::unique_lock<std::mutex> lock(state_mutex);
  state_changed.wait(lock, [&] { return !mark || mark->is_done; });
}
EXPORT cudaError_t cudaEventSynchronize(void* handle) {
  wait_for_mark(mark_of(handle));
  return remember(running_fault(current_device));
}
EXPORT cudaError_t cudaEventElapsedTime(float* milliseconds, void* first, void* last) {
  auto start = mark_of(first), end = mark_of(last);
  std::lock_guard<std::mutex> lock(state_mutex);
  if (!start || !end) return remember(INVALID_HANDLE);
  if (!start->is_done || !end->is_done) return NOT_READY;
  *milliseconds = float((end->seconds - start->seconds) * 1000);
  return SUCCESS;
}
EXPORT cudaError_t cudaEventElapsedTime_v2(float* milliseconds, void* first, void* last) { return cudaEventElapsedTime(milliseconds, first, last); }
EXPORT cudaError_t cudaStreamWaitEvent(void* stream, void* event, unsigned) {
  auto mark = mark_of(event);
  {
    std::lock_guard<std::mutex> lock(state_mutex);
    if (!mark || mark->is_done) return SUCCESS;
  }
  return enqueue(stream_of(stream), [mark] { wait_for_mark(mark); }), SUCCESS;
}

// ---- Memory ----

static void count_memory(int device, long long bytes) {
  if (auto* row = memory_table->own_row()) row->bytes[visible_gpus[device]] += bytes;
}
static size_t free_memory(int device) {
  size_t total = memory_of_gpu(), used = memory_table->used(visible_gpus[device]);
  return used < total ? total - used : 0;
}

static cudaError_t map_memory(void** pointer, size_t size, int device, int file) {
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | (file < 0 ? MAP_ANONYMOUS : 0), file, 0);
  if (memory == MAP_FAILED) return MEMORY_ALLOCATION;
  std::lock_guard<std::mutex> lock(state_mutex);
  allocations[static_cast<char*>(memory)] = {size, device, file};
  *pointer = memory;
  return SUCCESS;
}

EXPORT cudaError_t cudaMalloc(void** pointer, size_t size) {
  *pointer = nullptr;
  if (cudaError_t error = use_device(current_device)) return remember(error);
  if (!size) return SUCCESS;
  size = (size + 4095) & ~size_t(4095);
  if (size > free_memory(current_device)) return remember(MEMORY_ALLOCATION);
  int file = int(syscall(SYS_memfd_create, "device memory", 1u /* close on exec */));
  if (file < 0 || ftruncate(file, off_t(size))) return remember(MEMORY_ALLOCATION);
  cudaError_t error = map_memory(pointer, size, current_device, file);
  if (!error) count_memory(current_device, (long long)size);
  return remember(error);
}
EXPORT cudaError_t cudaMallocAsync(void** pointer, size_t size, void*) { return cudaMalloc(pointer, size); }
EXPORT cudaError_t cudaHostAlloc(void** pointer, size_t size, unsigned) {
  if (cudaError_t error = use_device(current_device)) return remember(error);
  return remember(map_memory(pointer, std::max<size_t>(size, 1), -1, -1));
}

// Unmap memory after the work of its device, as cudaFree does.
EXPORT cudaError_t cudaFree(void* pointer) {
  if (cudaError_t error = initialise()) return remember(error);
  if (!pointer) return SUCCESS;
  Allocation allocation;
  {
    std::lock_guard<std::mutex> lock(state_mutex);
    auto entry = allocations.find(static_cast<char*>(pointer));
    if (entry == allocations.end()) return remember(INVALID_VALUE);
    allocation = entry->second;
  }
  int device = current_device;
  if (allocation.device >= 0) {
    current_device = allocation.device;
    cudaDeviceSynchronize();
    current_device = device;
    if (allocation.file >= 0) count_memory(allocation.device, -(long long)allocation.size);
  }
  std::lock_guard<std::mutex> lock(state_mutex);
  allocations.erase(static_cast<char*>(pointer));
  munmap(pointer, allocation.size);
  if (allocation.file >= 0) close(allocation.file);
  return SUCCESS;
}
EXPORT cudaError_t cudaFreeAsync(void* pointer, void*) { return cudaFree(pointer); }
EXPORT cudaError_t cudaFreeHost(void* pointer) { return cudaFree(pointer); }
EXPORT cudaError_t cudaHostRegister(void*, size_t, unsigned) { return SUCCESS; }
EXPORT cudaError_t cudaHostUnregister(void*) { return SUCCESS; }
EXPORT cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total) {
  if (cudaError_t error = use_device(current_device)) return remember(error);
  *free_bytes = free_memory(current_device);
  *total = memory_of_gpu();
  return SUCCESS;
}

// Return the allocation that holds an address; the map's end if there is none. The mutex is held.
static std::map<char*, Allocation>::iterator allocation_at(const void* address) {
  auto* place = static_cast<char*>(const_cast<void*>(address));
  auto entry = allocations.upper_bound(place);
  if (entry == allocations.begin()) return allocations.end();
  --entry;
  return place < entry->first + entry->second.size ? entry : allocations.end();
}

struct PointerAttributes {  // cudaPointerAttributes
  int type, device;         // 0 not of CUDA, 1 of the host, 2 of a device
  void *device_pointer, *host_pointer;
};
EXPORT cudaError_t cudaPointerGetAttributes(PointerAttributes* attributes, const void* address) {
  if (cudaError_t error = initialise()) return remember(error);
  std::lock_guard<std::mutex> lock(state_mutex);
  auto entry = allocation_at(address);
  auto* pointer = const_cast<void*>(address);
  if (entry == allocations.end())
    *attributes = {0, -2, nullptr, pointer};
  else if (entry->second.device < 0)
    *attributes = {1, current_device, pointer, pointer};
  else
    *attributes = {2, entry->second.device, pointer, nullptr};
  return SUCCESS;
}

EXPORT cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, int, void* stream) {
  if (cudaError_t error = use_device(current_device)) return remember(error);
  return run_or_enqueue(stream_of(stream), [=] { memmove(to, from, size); }), SUCCESS;
}
EXPORT cudaError_t cudaMemcpy(void* to, const void* from, size_t size, int kind) {
  if (cudaError_t error = cudaMemcpyAsync(to, from, size, kind, nullptr)) return error;
  return cudaStreamSynchronize(nullptr);
}
EXPORT cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t size, void* stream) {
  return cudaMemcpyAsync(to, from, size, 0, stream);
}
EXPORT cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height, int, void* stream) {
  run_or_enqueue(stream_of(stream), [=] {
    for (size_t row = 0; row < height; row++) memmove((char*)to + row * to_pitch, (const char*)from + row * from_pitch, width);
  });
  return SUCCESS;
}
EXPORT cudaError_t cudaMemsetAsync(void* to, int value, size_t size, void* stream) {
  if (cudaError_t error = use_device(current_device)) return remember(error);
  return run_or_enqueue(stream_of(stream), [=] { memset(to, value, size); }), SUCCESS;
}
EXPORT cudaError_t cudaMemset(void* to, int value, size_t size) {
  if (cudaError_t error = cudaMemsetAsync(to, value, size, nullptr)) return error;
  return cudaStreamSynchronize(nullptr);
}

// Memory shared with other processes of the same user: the handle names the memfd through /proc.
struct MemoryHandle {  // cudaIpcMemHandle_t
  int pid, file, device, unused;
  size_t size;
  char rest[40];
};
static_assert(sizeof(MemoryHandle) == 64, "cudaIpcMemHandle_t has 64 bytes");
EXPORT cudaError_t cudaIpcGetMemHandle(MemoryHandle* handle, void* pointer) {
  std::lock_guard<std::mutex> lock(state_mutex);
  auto entry = allocation_at(pointer);
  if (entry == allocations.end() || entry->second.file < 0) return remember(INVALID_VALUE);
  *handle = {getpid(), entry->second.file, visible_gpus[entry->second.device], 0, entry->second.size, {}};
  return SUCCESS;
}
EXPORT cudaError_t cudaIpcOpenMemHandle(void** pointer, MemoryHandle handle, unsigned) {
  if (cudaError_t error = use_device(current_device)) return remember(error);
  std::string path = "/proc/" + std::to_string(handle.pid) + "/fd/" + std::to_string(handle.file);
  int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return remember(INVALID_HANDLE);
  cudaError_t error = map_memory(pointer, handle.size, current_device, file);
  close(file);
  std::lock_guard<std::mutex> lock(state_mutex);
  if (!error) allocations[static_cast<char*>(*pointer)].file = -1;
  return remember(error);
}
EXPORT cudaError_t cudaIpcCloseMemHandle(void* pointer) { return cudaFree(pointer); }
// Events of other processes are over: work that shares memory has been waited for.
EXPORT cudaError_t cudaIpcGetEventHandle(void* handle, void* event) {
  memset(handle, 0, 64);
  return cudaEventSynchronize(event);
}
struct EventHandle {
  char bytes[64];
};
EXPORT cudaError_t cudaIpcOpenEventHandle(void** event, EventHandle) { return cudaEventCreateWithFlags(event, 0); }

// ---- Kernels ----

// torch registers its kernels when it is loaded. cpu_kernels.cpp computes; a kernel that torch launches all the same fails.
static char no_module[64];
static void* no_module_handle = no_module;
EXPORT void** __cudaRegisterFatBinary(void*) { return &no_module_handle; }
EXPORT void __cudaRegisterFatBinaryEnd(void**) {}
EXPORT void __cudaUnregisterFatBinary(void**) {}
EXPORT void __cudaRegisterFunction(void**, const char*, char*, const char*, int, void*, void*, void*, void*, int*) {}
EXPORT void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
EXPORT char __cudaInitModule(void**) { return 1; }
EXPORT unsigned __cudaPushCallConfiguration(...) { return 0; }
EXPORT cudaError_t __cudaPopCallConfiguration(...) { return SUCCESS; }
EXPORT cudaError_t __cudaGetKernel(void** kernel, const void* function) { return *kernel = const_cast<void*>(function), SUCCESS; }
EXPORT cudaError_t __cudaLaunchKernel(...) { return remember(NOT_SUPPORTED); }
EXPORT cudaError_t cudaLaunchKernel(...) { return remember(NOT_SUPPORTED); }
EXPORT cudaError_t cudaLaunchKernelExC(...) { return remember(NOT_SUPPORTED); }
EXPORT cudaError_t cudaFuncGetAttributes(void* attributes, const void*) {
  memset(attributes, 0, 144);  // cudaFuncAttributes
  static_cast<int*>(attributes)[6] = 1024;  // maxThreadsPerBlock
  return SUCCESS;
}
EXPORT cudaError_t cudaFuncSetAttribute(const void*, int, int) { return SUCCESS; }
EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, ...) { return *blocks = 1, SUCCESS; }
EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, ...) { return *blocks = 1, SUCCESS; }

// ---- The driver's functions ----

// torch asks the runtime for functions of the driver. These few answer; all others say "not supported". libcuda.so.1
// takes them from here.
EXPORT int cuInit(unsigned) { return initialise(); }
EXPORT int cuGetErrorString(int error, const char** text) { return *text = cudaGetErrorString(error), SUCCESS; }
EXPORT int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return check_device(ordinal);
}
EXPORT int cuDeviceGetAttribute(int* value, int attribute, int device) { return cudaDeviceGetAttribute(value, attribute, device); }
EXPORT int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* is_active) {
  *flags = 0;
  *is_active = device >= 0 && device < MOST_GPUS && is_used[device];
  return SUCCESS;
}
EXPORT int cuDevicePrimaryCtxRetain(void** context, int device) { return *context = &is_used[device], SUCCESS; }
EXPORT int cuCtxGetCurrent(void** context) { return *context = &is_used[current_device], SUCCESS; }
EXPORT int cuCtxSetCurrent(void*) { return SUCCESS; }
EXPORT int cuThreadExchangeStreamCaptureMode(int*) { return SUCCESS; }
EXPORT int cuMemGetAddressRange_v2(void** base, size_t* size, void* address) {
  std::lock_guard<std::mutex> lock(state_mutex);
  auto entry = allocation_at(address);
  if (entry == allocations.end()) return INVALID_VALUE;
  if (base) *base = entry->first;
  if (size) *size = entry->second.size;
  return SUCCESS;
}
EXPORT int cuMemGetAddressRange(void** base, size_t* size, void* address) { return cuMemGetAddressRange_v2(base, size, address); }
static int driver_not_supported() { return NOT_SUPPORTED; }

static cudaError_t driver_function(const char* name, void** function, int* status) {
  static void* own = [] {
    Dl_info library;
    dladdr(reinterpret_cast<void*>(driver_not_supported), &library);
    return dlopen(library.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  }();
  *function = dlsym(own, name);
  if (!*function) *function = reinterpret_cast<void*>(driver_not_supported);
  if (status) *status = 0;
  return SUCCESS;
}
EXPORT cudaError_t cudaGetDriverEntryPoint(const char* name, void** function, unsigned long long, int* status) {
  return driver_function(name, function, status);
}
EXPORT cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long, int* status) {
  return driver_function(name, function, status);
}
