// A stand-in for NCCL, written from its public header: communicators, collectives, send and receive, abort and
// asynchronous errors, over TCP between the ranks. It works on the host memory that cudart.cpp calls device memory.
//
// - A call queues its work on the CUDA stream (cudaLaunchHostFunc), so torch's watchdog, time-outs and flight records
//   see a collective that runs, ends or hangs.
// - The ranks of a communicator meet through the rank that made the unique id, then connect with each other.
// - Messages travel in slots, as in NCCL: ranks that disagree about a size hang only if their numbers of slots differ.
// - The death of a process on another node is an asynchronous error (ncclRemoteError). On the same node it is silence,
//   as over NVLink.
// - Faults (faults.h): hang-init, never-arrives, init-error, slow-kernels=SECONDS, hang, slow=SECONDS, wrong-sum,
//   remote-error, async-error.

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "faults.h"

#ifndef NCCL_VERSION
#define NCCL_VERSION 22907
#endif

#define EXPORT extern "C" __attribute__((visibility("default")))

extern "C" {
int cudaGetDevice(int*);
int cudaDeviceGetPCIBusId(char*, int, int);
int cudaLaunchHostFunc(void* stream, void (*function)(void*), void* data);
int cudaMalloc(void**, size_t);
int cudaFree(void*);
}

enum ncclResult_t { SUCCESS = 0, SYSTEM_ERROR = 2, INTERNAL_ERROR = 3, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, REMOTE_ERROR = 6 };
enum Type { INT8, UINT8, INT32, UINT32, INT64, UINT64, HALF, FLOAT, DOUBLE, BFLOAT16, FLOAT8_E4M3, FLOAT8_E5M2 };
enum Operation { SUM, PROD, MAX, MIN, AVG, FIRST_OWN };  // from FIRST_OWN on: pre-multiplied sums
constexpr size_t SLOT = 512 << 10;
constexpr int CHECK_MILLISECONDS = 50;  // how often a wait looks for an abort

struct ncclUniqueId {
  char bytes[128];
};
struct IdContent {  // what this file keeps in it
  uint32_t address;
  uint16_t port;
  uint64_t nonce;
};

// ---- Messages ----

static thread_local char last_error[512];

static int debug_level() {  // 0 none, 1 VERSION, 2 WARN, 3 INFO
  const char* level = getenv("NCCL_DEBUG");
  if (!level) return 0;
  return !strcasecmp(level, "VERSION") ? 1 : !strcasecmp(level, "WARN") ? 2 : !strcasecmp(level, "INFO") || !strcasecmp(level, "TRACE") ? 3 : 0;
}

static void print(int level, const char* format, ...) {
  char text[512], host[64] = "";
  va_list values;
  va_start(values, format);
  vsnprintf(text, sizeof text, format, values);
  va_end(values);
  if (level == 2) strcpy(last_error, text);
  if (debug_level() < level) return;
  gethostname(host, sizeof host - 1);
  int device = 0;
  cudaGetDevice(&device);
  if (level == 1)
    printf("%s\n", text);
  else
    printf("%s:%d:%d [%d] NCCL %s %s\n", host, getpid(), gettid(), device, level == 2 ? "WARN" : "INFO", text);
  fflush(stdout);
}

// ---- Sockets ----

struct Interface {
  std::string name;
  uint32_t address;
};

static bool matches_any(const std::string& name, const std::string& list, bool is_exact) {
  std::istringstream entries(list);
  for (std::string entry; std::getline(entries, entry, ',');)
    if (is_exact ? name == entry : name.rfind(entry, 0) == 0) return true;
  return false;
}

// Return the interface that NCCL_SOCKET_IFNAME names; without it ib*, then any but docker and lo, then lo.
static Interface choose_interface() {
  std::vector<Interface> interfaces;
  ifaddrs* list = nullptr;
  getifaddrs(&list);
  for (auto* entry = list; entry; entry = entry->ifa_next)
    if (entry->ifa_addr && entry->ifa_addr->sa_family == AF_INET && (entry->ifa_flags & IFF_UP))
      interfaces.push_back({entry->ifa_name, reinterpret_cast<sockaddr_in*>(entry->ifa_addr)->sin_addr.s_addr});
  freeifaddrs(list);
  const char* variable = getenv("NCCL_SOCKET_IFNAME");
  std::string wish = variable ? variable : "";
  bool is_excluding = wish[0] == '^', is_exact = false;
  if (is_excluding) wish.erase(0, 1);
  if (wish[0] == '=') is_exact = true, wish.erase(0, 1);
  if (!wish.empty()) {
    for (auto& interface : interfaces)
      if (matches_any(interface.name, wish, is_exact) != is_excluding) return interface;
    return {"", 0};
  }
  for (const char* prefix : {"ib", "", "lo"})
    for (auto& interface : interfaces)
      if (*prefix ? interface.name.rfind(prefix, 0) == 0 : !matches_any(interface.name, "docker,lo,virbr", false)) return interface;
  return {"", 0};
}

static std::string address_text(uint32_t address) {
  char text[INET_ADDRSTRLEN] = "";
  inet_ntop(AF_INET, &address, text, sizeof text);
  return text;
}

static int listen_at(uint32_t address, uint16_t* port) {
  int file = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in place{};
  place.sin_family = AF_INET;
  place.sin_addr.s_addr = address;
  socklen_t length = sizeof place;
  if (bind(file, reinterpret_cast<sockaddr*>(&place), length) || listen(file, 1024)) return close(file), -1;
  getsockname(file, reinterpret_cast<sockaddr*>(&place), &length);
  *port = ntohs(place.sin_port);
  return file;
}

// Connect, with a few tries while nobody listens; -1 if it fails.
static int connect_to(uint32_t address, uint16_t port) {
  for (int attempt = 0; attempt < 20; attempt++) {
    int file = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    sockaddr_in place{};
    place.sin_family = AF_INET;
    place.sin_addr.s_addr = address;
    place.sin_port = htons(port);
    if (!connect(file, reinterpret_cast<sockaddr*>(&place), sizeof place)) {
      setsockopt(file, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      return file;
    }
    int reason = errno;
    close(file);
    if (reason != ECONNREFUSED && reason != EINTR) break;
    usleep(100000);
  }
  print(2, "Call to connect to %s<%d> failed : %s", address_text(address).c_str(), port, strerror(errno));
  return -1;
}

static bool send_all(int file, const void* data, size_t size) {
  for (auto* place = static_cast<const char*>(data); size;) {
    ssize_t sent = send(file, place, size, MSG_NOSIGNAL);
    if (sent <= 0) return false;
    place += sent, size -= size_t(sent);
  }
  return true;
}

// Receive, while *is_aborted is false.
static bool receive_all(int file, void* data, size_t size, const std::atomic<bool>* is_aborted = nullptr) {
  for (auto* place = static_cast<char*>(data); size;) {
    pollfd wait{file, POLLIN, 0};
    if (poll(&wait, 1, CHECK_MILLISECONDS) == 0) {
      if (is_aborted && *is_aborted) return false;
      continue;
    }
    ssize_t received = recv(file, place, size, 0);
    if (received <= 0) return false;
    place += received, size -= size_t(received);
  }
  return true;
}

// ---- Communicators ----

struct Member {  // what each rank tells the others
  uint32_t address;
  uint16_t port;
  uint16_t gpu;
  int rank, color, key;
  char host[64];
  char bus[16];
};

// A piece of a collective: bytes to or from one rank.
struct Transfer {
  int peer;
  char* data;
  size_t size;
  bool is_send;
  size_t done = 0;                    // bytes of whole slots
  uint32_t slot_size = 0, moved = 0;  // the slot under way: its payload, and the bytes moved with its header
};

struct Comm {
  int rank = 0, size = 0, gpu = 0;
  std::vector<Member> members;
  std::vector<int> sockets;  // by rank
  std::atomic<bool> is_aborted{false};
  std::atomic<int> async_error{SUCCESS};
  std::vector<double> factors;  // of pre-multiplied sums
  // Operations run one at a time, in the order of their calls.
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t queued = 0, finished = 0;

  ~Comm() {
    for (int file : sockets)
      if (file >= 0) close(file);
  }

  void wait_for_abort() {
    while (!is_aborted) usleep(CHECK_MILLISECONDS * 1000);
  }

  // A connection broke. NCCL notices that on the network only; then the collective waits until it is aborted.
  void lose(int peer) {
    if (strcmp(members[peer].host, members[rank].host)) {
      print(2, "socketProgress: Connection closed by remote peer %s<%d>", address_text(members[peer].address).c_str(), members[peer].port);
      async_error = REMOTE_ERROR;
    }
    wait_for_abort();
  }

  // Move what the socket takes or has; return whether the transfer is complete. Set *is_broken if the socket is.
  bool advance(Transfer& transfer, bool* is_broken) {
    while (transfer.done < transfer.size) {
      uint32_t own = uint32_t(std::min(SLOT, transfer.size - transfer.done));
      if (transfer.is_send) transfer.slot_size = own;
      bool is_header = transfer.moved < 4;
      char skipped[4096];
      char* place;
      size_t room;
      if (is_header) {
        place = reinterpret_cast<char*>(&transfer.slot_size) + transfer.moved;
        room = 4 - transfer.moved;
      } else {
        uint32_t at = transfer.moved - 4;
        // The rest of a slot that is larger than expected is dropped.
        bool fits = at < own;
        place = fits ? transfer.data + transfer.done + at : skipped;
        room = fits ? std::min(own, transfer.slot_size) - at : std::min<size_t>(sizeof skipped, transfer.slot_size - at);
      }
      if (room) {
        int file = sockets[transfer.peer];
        ssize_t count = transfer.is_send ? send(file, place, room, MSG_NOSIGNAL | MSG_DONTWAIT) : recv(file, place, room, MSG_DONTWAIT);
        if (count < 0 && (errno == EAGAIN || errno == EINTR)) return false;
        if (count <= 0) return *is_broken = true, false;
        transfer.moved += uint32_t(count);
      }
      if (transfer.moved >= 4 && transfer.moved == transfer.slot_size + 4) {
        transfer.done += own;
        transfer.moved = 0;
      }
    }
    return true;
  }

  // Run transfers side by side; those with one rank in one direction keep their order. Return false if aborted.
  bool run(std::vector<Transfer> transfers) {
    std::vector<Transfer*> open;
    std::vector<Transfer*> own_sends;
    for (auto& transfer : transfers) {
      if (transfer.peer != rank)
        open.push_back(&transfer);
      else if (transfer.is_send)
        own_sends.push_back(&transfer);
    }
    size_t next = 0;
    for (auto& transfer : transfers)
      if (transfer.peer == rank && !transfer.is_send && next < own_sends.size()) {
        memmove(transfer.data, own_sends[next]->data, std::min(transfer.size, own_sends[next]->size));
        next++;
      }
    while (!open.empty()) {
      if (is_aborted) return false;
      std::set<std::pair<int, bool>> is_taken;
      std::vector<pollfd> waits;
      std::vector<Transfer*> rest;
      for (auto* transfer : open) {
        bool is_first = is_taken.insert({transfer->peer, transfer->is_send}).second, is_broken = false;
        if (is_first && advance(*transfer, &is_broken)) {
          is_taken.erase({transfer->peer, transfer->is_send});
          continue;
        }
        if (is_broken) return lose(transfer->peer), false;
        if (is_first) waits.push_back({sockets[transfer->peer], short(transfer->is_send ? POLLOUT : POLLIN), 0});
        rest.push_back(transfer);
      }
      open = rest;
      if (!open.empty()) poll(waits.data(), nfds_t(waits.size()), CHECK_MILLISECONDS);
    }
    return true;
  }
};

// The handle that callers hold. Queued work holds the communicator itself.
struct ncclComm {
  std::shared_ptr<Comm> comm;
};
typedef ncclComm* ncclComm_t;

// ---- How ranks meet ----

// Collect the members of a communicator and tell everybody all of them. Runs in the process that made the id.
static void serve_meeting(int listener, uint64_t nonce) {
  std::map<int, std::pair<int, Member>> members;
  int size = 1;
  while (int(members.size()) < size) {
    int file = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (file < 0) break;
    uint64_t their_nonce = 0;
    int32_t their_size = 0;
    Member member;
    if (receive_all(file, &their_nonce, 8) && their_nonce == nonce && receive_all(file, &their_size, 4) && receive_all(file, &member, sizeof member)) {
      size = their_size;
      members[member.rank] = {file, member};
    } else {
      close(file);
    }
  }
  close(listener);
  for (auto& [rank, receiver] : members) {
    for (auto& [other, entry] : members) send_all(receiver.first, &entry.second, sizeof entry.second);
    close(receiver.first);
  }
}

// Fill in what the others need to know of this rank, and listen.
static Member describe(int rank, int* listener) {
  Member member{};
  member.rank = rank;
  gethostname(member.host, sizeof member.host - 1);
  int device = 0;
  cudaGetDevice(&device);
  member.gpu = uint16_t(device);
  cudaDeviceGetPCIBusId(member.bus, sizeof member.bus, device);
  member.address = choose_interface().address;
  *listener = listen_at(member.address, &member.port);
  return member;
}

// Connect with every other rank: to the lower ones, and from the higher ones.
static ncclResult_t connect_all(Comm& comm, int listener) {
  comm.sockets.assign(comm.size, -1);
  for (int peer = 0; peer < comm.rank; peer++) {
    int file = connect_to(comm.members[peer].address, comm.members[peer].port);
    if (file < 0 || !send_all(file, &comm.rank, 4)) return SYSTEM_ERROR;
    comm.sockets[peer] = file;
  }
  for (int expected = comm.rank + 1; expected < comm.size;) {
    pollfd wait{listener, POLLIN, 0};
    if (poll(&wait, 1, CHECK_MILLISECONDS) == 0) {
      if (comm.is_aborted) return INTERNAL_ERROR;
      continue;
    }
    int file = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC), peer = -1, on = 1;
    if (file < 0 || !receive_all(file, &peer, 4, &comm.is_aborted) || peer <= comm.rank || peer >= comm.size) return REMOTE_ERROR;
    setsockopt(file, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    comm.sockets[peer] = file;
    expected++;
  }
  close(listener);
  for (int peer = 0; peer < comm.size; peer++) {
    auto &other = comm.members[peer], &own = comm.members[comm.rank];
    if (peer != comm.rank && !strcmp(other.host, own.host) && !strcmp(other.bus, own.bus)) {
      print(2, "Duplicate GPU detected : rank %d and rank %d both on CUDA device %s", comm.rank, peer, own.bus);
      return INVALID_USAGE;
    }
  }
  return SUCCESS;
}

static int gpu_of_node() {  // for faults: the number that the bus address has on the node is the device's own here
  int device = 0;
  cudaGetDevice(&device);
  return device;
}

EXPORT ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  Interface interface = choose_interface();
  if (interface.name.empty()) return print(2, "Bootstrap : no socket interface found"), SYSTEM_ERROR;
  IdContent content{interface.address, 0, uint64_t(getpid()) << 32 ^ uint64_t(std::chrono::steady_clock::now().time_since_epoch().count())};
  int listener = listen_at(content.address, &content.port);
  if (listener < 0) return print(2, "Bootstrap : cannot listen"), SYSTEM_ERROR;
  std::thread(serve_meeting, listener, content.nonce).detach();
  memset(id, 0, sizeof *id);
  memcpy(id, &content, sizeof content);
  return SUCCESS;
}

static void hang() {
  for (;;) pause();
}

static ncclResult_t join(ncclComm_t* handle, int size, ncclUniqueId id, int rank) {
  IdContent content;
  memcpy(&content, &id, sizeof content);
  auto comm = std::make_shared<Comm>();
  comm->rank = rank, comm->size = size, comm->gpu = gpu_of_node();
  if (has_fault("never-arrives", comm->gpu)) hang();
  if (!rank) print(1, "NCCL version %d.%d.%d+cuda%s", NCCL_VERSION / 10000, NCCL_VERSION / 100 % 100, NCCL_VERSION % 100, "stand-in");
  Interface interface = choose_interface();
  if (interface.name.empty()) return print(2, "Bootstrap : no socket interface found"), SYSTEM_ERROR;
  std::string place = interface.name + ":" + address_text(interface.address) + "<0>";
  print(3, "Bootstrap: Using %s", place.c_str());
  print(3, "NET/Socket : Using [0]%s", place.c_str());
  print(3, "Using network Socket");
  double seconds;
  if (has_fault("slow-kernels", comm->gpu, &seconds)) usleep(useconds_t(seconds * 1e6));
  print(3, "ncclCommInitRankConfig comm %p rank %d nranks %d cudaDev %d commId 0x%llx - Init START", static_cast<void*>(comm.get()), rank, size,
        comm->gpu, static_cast<unsigned long long>(content.nonce));
  if (has_fault("init-error", comm->gpu)) return print(2, "Cuda failure 2 'out of memory'"), ncclResult_t(1);
  int listener, root = connect_to(content.address, content.port);
  Member own = describe(rank, &listener);
  int32_t size_sent = size;
  if (root < 0 || listener < 0) return SYSTEM_ERROR;
  if (!send_all(root, &content.nonce, 8) || !send_all(root, &size_sent, 4) || !send_all(root, &own, sizeof own)) return REMOTE_ERROR;
  comm->members.resize(size);
  for (auto& member : comm->members)
    if (!receive_all(root, &member, sizeof member)) return print(2, "Bootstrap : connection closed by the root"), REMOTE_ERROR;
  close(root);
  if (has_fault("hang-init", comm->gpu)) hang();
  if (ncclResult_t error = connect_all(*comm, listener)) return error;
  print(3, "ncclCommInitRankConfig comm %p rank %d nranks %d cudaDev %d commId 0x%llx - Init COMPLETE", static_cast<void*>(comm.get()), rank, size,
        comm->gpu, static_cast<unsigned long long>(content.nonce));
  *handle = new ncclComm{comm};
  return SUCCESS;
}

EXPORT ncclResult_t ncclCommInitRank(ncclComm_t* comm, int size, ncclUniqueId id, int rank) { return join(comm, size, id, rank); }
EXPORT ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank, void*) { return join(comm, size, id, rank); }
EXPORT ncclResult_t ncclCommInitRankScalable(ncclComm_t* comm, int size, int rank, int, ncclUniqueId* ids, void*) { return join(comm, size, ids[0], rank); }

// Take a place in the order of operations; run after those before.
static uint64_t take_place(Comm& comm) {
  std::lock_guard<std::mutex> lock(comm.mutex);
  return comm.queued++;
}
static void run_in_place(Comm& comm, uint64_t place, const std::function<void()>& work) {
  {
    std::unique_lock<std::mutex> lock(comm.mutex);
    comm.changed.wait(lock, [&] { return comm.finished == place; });
  }
  if (!comm.is_aborted) work();
  std::lock_guard<std::mutex> lock(comm.mutex);
  comm.finished++;
  comm.changed.notify_all();
}

EXPORT ncclResult_t ncclCommSplit(ncclComm_t parent_handle, int color, int key, ncclComm_t* handle, void*) {
  Comm& parent = *parent_handle->comm;
  *handle = nullptr;
  int listener;
  Member own = describe(parent.rank, &listener);
  own.color = color, own.key = key;
  std::vector<Member> members(parent.size);
  bool is_complete = false;
  run_in_place(parent, take_place(parent), [&] {
    std::vector<Transfer> transfers;
    for (int peer = 0; peer < parent.size; peer++) {
      transfers.push_back({peer, reinterpret_cast<char*>(&own), sizeof own, true});
      transfers.push_back({peer, reinterpret_cast<char*>(&members[peer]), sizeof own, false});
    }
    is_complete = parent.run(transfers);
  });
  if (!is_complete) return REMOTE_ERROR;
  if (color < 0) return close(listener), SUCCESS;
  auto comm = std::make_shared<Comm>();
  for (auto& member : members)
    if (member.color == color) comm->members.push_back(member);
  std::stable_sort(comm->members.begin(), comm->members.end(), [](auto& a, auto& b) { return a.key < b.key; });
  comm->size = int(comm->members.size()), comm->gpu = parent.gpu;
  while (comm->members[comm->rank].rank != parent.rank) comm->rank++;
  if (ncclResult_t error = connect_all(*comm, listener)) return error;
  *handle = new ncclComm{comm};
  return SUCCESS;
}

// End a communicator: after its work, or at once.
static ncclResult_t end(ncclComm_t handle, bool is_abort) {
  if (!handle) return SUCCESS;
  auto comm = handle->comm;
  if (is_abort) comm->is_aborted = true;
  std::unique_lock<std::mutex> lock(comm->mutex);
  comm->changed.wait(lock, [&] { return comm->finished == comm->queued; });
  lock.unlock();
  comm->is_aborted = true;
  delete handle;
  return SUCCESS;
}
EXPORT ncclResult_t ncclCommAbort(ncclComm_t comm) { return end(comm, true); }
EXPORT ncclResult_t ncclCommDestroy(ncclComm_t comm) { return end(comm, false); }
EXPORT ncclResult_t ncclCommFinalize(ncclComm_t) { return SUCCESS; }
EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t handle, ncclResult_t* error) {
  Comm& comm = *handle->comm;
  // "async-error" strikes once a collective was called.
  *error = comm.queued && has_fault("async-error", comm.gpu) ? INTERNAL_ERROR : ncclResult_t(comm.async_error.load());
  return SUCCESS;
}
EXPORT ncclResult_t ncclCommCount(ncclComm_t handle, int* count) { return *count = handle->comm->size, SUCCESS; }
EXPORT ncclResult_t ncclCommUserRank(ncclComm_t handle, int* rank) { return *rank = handle->comm->rank, SUCCESS; }
EXPORT ncclResult_t ncclCommCuDevice(ncclComm_t handle, int* device) { return *device = handle->comm->gpu, SUCCESS; }
EXPORT ncclResult_t ncclCommRegister(ncclComm_t, void*, size_t, void** registration) { return *registration = nullptr, SUCCESS; }
EXPORT ncclResult_t ncclCommDeregister(ncclComm_t, void*) { return SUCCESS; }
EXPORT ncclResult_t ncclMemAlloc(void** pointer, size_t size) { return cudaMalloc(pointer, size) ? ncclResult_t(1) : SUCCESS; }
EXPORT ncclResult_t ncclMemFree(void* pointer) { return cudaFree(pointer) ? ncclResult_t(1) : SUCCESS; }
EXPORT ncclResult_t ncclGetVersion(int* version) { return *version = NCCL_VERSION, SUCCESS; }
EXPORT const char* ncclGetLastError(ncclComm_t) { return last_error; }
EXPORT const char* ncclGetErrorString(ncclResult_t error) {
  static const char* const texts[] = {"no error",         "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
                                      "unhandled system error (run with NCCL_DEBUG=INFO for details)",
                                      "internal error - please report this issue to the NCCL developers", "invalid argument (run with NCCL_DEBUG=WARN for details)",
                                      "invalid usage (run with NCCL_DEBUG=WARN for details)", "remote process exited or there was a network error",
                                      "NCCL operation in progress"};
  return error < 0 || error > 7 ? "unknown result code" : texts[error];
}

// ---- Arithmetic ----

struct BFloat16 {
  uint16_t bits;
  operator float() const {
    uint32_t wide = uint32_t(bits) << 16;
    float value;
    memcpy(&value, &wide, 4);
    return value;
  }
  BFloat16(float value) {
    uint32_t wide;
    memcpy(&wide, &value, 4);
    bits = uint16_t((wide + 0x7fff + (wide >> 16 & 1)) >> 16);  // to the nearest, ties to even
  }
};

static size_t size_of(int type) {
  constexpr size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return sizes[type];
}

// Put the reduction of `parts` (arrays of `count` elements) into `result`, which may be one of them.
template <class T, class Sum>
static void reduce_as(T* result, const std::vector<char*>& parts, size_t count, int operation, double factor, bool is_wrong) {
  for (size_t i = 0; i < count; i++) {
    auto scale = [&](T value) { return operation >= FIRST_OWN ? Sum(Sum(value) * Sum(factor)) : Sum(value); };
    Sum sum = scale(reinterpret_cast<T*>(parts[0])[i]);
    for (size_t part = 1; part < parts.size(); part++) {
      Sum value = scale(reinterpret_cast<T*>(parts[part])[i]);
      if (operation == PROD)
        sum = Sum(sum * value);
      else if (operation == MAX)
        sum = std::max(sum, value);
      else if (operation == MIN)
        sum = std::min(sum, value);
      else
        sum = Sum(sum + value);
    }
    if (operation == AVG) sum = Sum(sum / Sum(parts.size()));
    if (is_wrong && !i) sum = Sum(sum + Sum(1));
    result[i] = T(sum);
  }
}

static void reduce(char* result, const std::vector<char*>& parts, size_t count, int type, int operation, double factor, bool is_wrong) {
  auto as = [&](auto sample, auto sum) {
    using T = decltype(sample);
    reduce_as<T, decltype(sum)>(reinterpret_cast<T*>(result), parts, count, operation, factor, is_wrong);
  };
  switch (type) {
    case INT8: return as(int8_t(), int8_t());
    case UINT8: return as(uint8_t(), uint8_t());
    case INT32: return as(int32_t(), int32_t());
    case UINT32: return as(uint32_t(), uint32_t());
    case INT64: return as(int64_t(), int64_t());
    case UINT64: return as(uint64_t(), uint64_t());
    case HALF: return as(_Float16(), float());
    case FLOAT: return as(float(), float());
    case DOUBLE: return as(double(), double());
    case BFLOAT16: return as(BFloat16(0), float());
  }
}

static double element(const void* data, int type) {
  if (type == FLOAT) return *static_cast<const float*>(data);
  if (type == DOUBLE) return *static_cast<const double*>(data);
  if (type == HALF) return double(*static_cast<const _Float16*>(data));
  if (type == BFLOAT16) return *static_cast<const BFloat16*>(data);
  return 1;
}

EXPORT ncclResult_t ncclRedOpCreatePreMulSum(int* operation, void* scalar, int type, int, ncclComm_t handle) {
  Comm& comm = *handle->comm;
  std::lock_guard<std::mutex> lock(comm.mutex);
  comm.factors.push_back(element(scalar, type));
  return *operation = FIRST_OWN + int(comm.factors.size()) - 1, SUCCESS;
}
EXPORT ncclResult_t ncclRedOpDestroy(int, ncclComm_t) { return SUCCESS; }

// ---- Collectives ----

enum Kind { ALL_REDUCE, REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, ALL_TO_ALL, SEND, RECEIVE };

struct Call {
  Kind kind;
  char *from, *to;
  size_t count;  // elements, as in NCCL's function
  int type, operation, peer;  // the peer, or the root
};

static void run_call(Comm& comm, const Call& call) {
  size_t width = size_of(call.type), bytes = call.count * width;
  int size = comm.size, rank = comm.rank;
  double factor = call.operation >= FIRST_OWN ? comm.factors[size_t(call.operation - FIRST_OWN)] : 1;
  bool is_wrong = has_fault("wrong-sum", comm.gpu);
  std::vector<Transfer> transfers;
  auto send = [&](int peer, const char* data, size_t length) { transfers.push_back({peer, const_cast<char*>(data), length, true}); };
  auto receive = [&](int peer, char* data, size_t length) { transfers.push_back({peer, data, length, false}); };

  // Every rank reduces its share of the elements; `share` says where the share of a rank begins and ends.
  auto scatter_reduce = [&](const std::function<std::pair<size_t, size_t>(int)>& share, char* result) {
    auto [begin, end] = share(rank);
    size_t own = (end - begin) * width;
    std::vector<char> parts(own * size_t(size));
    std::vector<char*> pointers;
    for (int peer = 0; peer < size; peer++) {
      pointers.push_back(parts.data() + own * size_t(peer));
      auto [first, last] = share(peer);
      send(peer, call.from + first * width, (last - first) * width);
      receive(peer, pointers.back(), own);
    }
    if (!comm.run(transfers)) return false;
    transfers.clear();
    reduce(result, pointers, end - begin, call.type, call.operation, factor, is_wrong);
    return true;
  };

  switch (call.kind) {
    case ALL_REDUCE: {
      auto share = [&](int peer) { return std::make_pair(call.count * size_t(peer) / size_t(size), call.count * size_t(peer + 1) / size_t(size)); };
      std::vector<char> result((share(rank).second - share(rank).first) * width);
      if (!scatter_reduce(share, result.data())) return;
      for (int peer = 0; peer < size; peer++) {
        auto [first, last] = share(peer);
        send(peer, result.data(), result.size());
        receive(peer, call.to + first * width, (last - first) * width);
      }
      comm.run(transfers);
      return;
    }
    case REDUCE_SCATTER:
      scatter_reduce([&](int peer) { return std::make_pair(call.count * size_t(peer), call.count * size_t(peer + 1)); }, call.to);
      return;
    case REDUCE:
      if (call.peer == rank) {
        scatter_reduce([&](int peer) { return peer == rank ? std::make_pair(size_t(0), call.count) : std::make_pair(size_t(0), size_t(0)); }, call.to);
      } else {
        send(call.peer, call.from, bytes);
        comm.run(transfers);
      }
      return;
    case BROADCAST:
      if (call.peer == rank)
        for (int peer = 0; peer < size; peer++) send(peer, call.from, bytes);
      receive(call.peer, call.to, bytes);
      break;
    case ALL_GATHER:
    case ALL_TO_ALL:
      for (int peer = 0; peer < size; peer++) {
        send(peer, call.from + (call.kind == ALL_TO_ALL ? bytes * size_t(peer) : 0), bytes);
        receive(peer, call.to + bytes * size_t(peer), bytes);
      }
      break;
    case SEND:
    case RECEIVE:
      return;  // run_calls takes them together
  }
  comm.run(transfers);
}

static void run_calls(Comm& comm, const std::vector<Call>& calls) {
  double seconds;
  if (has_fault("hang", comm.gpu)) return comm.wait_for_abort();
  if (has_fault("slow", comm.gpu, &seconds)) usleep(useconds_t(seconds * 1e6));
  if (has_fault("remote-error", comm.gpu)) {
    comm.async_error = REMOTE_ERROR;
    return comm.wait_for_abort();
  }
  std::vector<Transfer> transfers;
  for (auto& call : calls)
    if (call.kind == SEND || call.kind == RECEIVE)
      transfers.push_back({call.peer, call.kind == SEND ? call.from : call.to, call.count * size_of(call.type), call.kind == SEND});
  if (!comm.run(transfers)) return;
  for (auto& call : calls)
    if (!comm.is_aborted) run_call(comm, call);
}

// Calls between ncclGroupStart and ncclGroupEnd run as one, for each communicator and stream.
struct Batch {
  std::shared_ptr<Comm> comm;
  void* stream;
  std::vector<Call> calls;
};
static thread_local int group_depth;
static thread_local std::vector<Batch> group;

static ncclResult_t launch(const Batch& batch) {
  uint64_t place = take_place(*batch.comm);
  auto* work = new std::function<void()>([batch, place] { run_in_place(*batch.comm, place, [&] { run_calls(*batch.comm, batch.calls); }); });
  auto run = [](void* data) {
    auto* work = static_cast<std::function<void()>*>(data);
    (*work)();
    delete work;
  };
  return cudaLaunchHostFunc(batch.stream, run, work) ? ncclResult_t(1) : SUCCESS;
}

EXPORT ncclResult_t ncclGroupStart() { return group_depth++, SUCCESS; }
EXPORT ncclResult_t ncclGroupEnd() {
  if (--group_depth > 0) return SUCCESS;
  auto batches = std::move(group);
  group.clear();
  for (auto& batch : batches)
    if (ncclResult_t error = launch(batch)) return error;
  return SUCCESS;
}

static ncclResult_t call(ncclComm_t handle, void* stream, Call call) {
  Comm& comm = *handle->comm;
  if (call.type < 0 || call.type > FLOAT8_E5M2) return print(2, "invalid type %d", call.type), INVALID_ARGUMENT;
  if (call.peer < 0 || call.peer >= comm.size) return print(2, "invalid peer or root %d of %d ranks", call.peer, comm.size), INVALID_ARGUMENT;
  bool reduces = call.kind == ALL_REDUCE || call.kind == REDUCE || call.kind == REDUCE_SCATTER;
  if (reduces && call.type >= FLOAT8_E4M3) return print(2, "no reduction of 8-bit floats"), INVALID_ARGUMENT;
  for (auto& batch : group)
    if (group_depth && batch.comm == handle->comm && batch.stream == stream) return batch.calls.push_back(call), SUCCESS;
  Batch batch{handle->comm, stream, {call}};
  if (!group_depth) return launch(batch);
  group.push_back(batch);
  return SUCCESS;
}
static char* bytes(const void* data) { return static_cast<char*>(const_cast<void*>(data)); }

EXPORT ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, int type, int operation, ncclComm_t comm, void* stream) {
  return call(comm, stream, {ALL_REDUCE, bytes(from), bytes(to), count, type, operation, 0});
}
EXPORT ncclResult_t ncclReduce(const void* from, void* to, size_t count, int type, int operation, int root, ncclComm_t comm, void* stream) {
  return call(comm, stream, {REDUCE, bytes(from), bytes(to), count, type, operation, root});
}
EXPORT ncclResult_t ncclReduceScatter(const void* from, void* to, size_t count, int type, int operation, ncclComm_t comm, void* stream) {
  return call(comm, stream, {REDUCE_SCATTER, bytes(from), bytes(to), count, type, operation, 0});
}
EXPORT ncclResult_t ncclAllGather(const void* from, void* to, size_t count, int type, ncclComm_t comm, void* stream) {
  return call(comm, stream, {ALL_GATHER, bytes(from), bytes(to), count, type, SUM, 0});
}
EXPORT ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, int type, int root, ncclComm_t comm, void* stream) {
  return call(comm, stream, {BROADCAST, bytes(from), bytes(to), count, type, SUM, root});
}
EXPORT ncclResult_t ncclBcast(void* data, size_t count, int type, int root, ncclComm_t comm, void* stream) {
  return ncclBroadcast(data, data, count, type, root, comm, stream);
}
EXPORT ncclResult_t ncclAlltoAll(const void* from, void* to, size_t count, int type, ncclComm_t comm, void* stream) {
  return call(comm, stream, {ALL_TO_ALL, bytes(from), bytes(to), count, type, SUM, 0});
}
EXPORT ncclResult_t ncclSend(const void* from, size_t count, int type, int peer, ncclComm_t comm, void* stream) {
  return call(comm, stream, {SEND, bytes(from), nullptr, count, type, SUM, peer});
}
EXPORT ncclResult_t ncclRecv(void* to, size_t count, int type, int peer, ncclComm_t comm, void* stream) {
  return call(comm, stream, {RECEIVE, nullptr, bytes(to), count, type, SUM, peer});
}
