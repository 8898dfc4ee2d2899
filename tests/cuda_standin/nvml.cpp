// A stand-in for NVIDIA's management library: the functions that torch and clusterrun call.
//
// Memory in use is real: processes count it in a table of the node (devices.h). The rest is that of an idle H100.

#include <cstring>

#include "devices.h"
#include "faults.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

typedef int nvmlReturn_t;
enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6 };

// A handle is the GPU's number plus 1.
typedef uintptr_t Handle;
static MemoryTable* memory_table;

EXPORT nvmlReturn_t nvmlInit_v2() {
  if (!memory_table) memory_table = new MemoryTable;
  return SUCCESS;
}
EXPORT nvmlReturn_t nvmlInit() { return nvmlInit_v2(); }
EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned) { return nvmlInit_v2(); }
EXPORT nvmlReturn_t nvmlShutdown() { return SUCCESS; }
EXPORT const char* nvmlErrorString(nvmlReturn_t code) { return code ? "Not Supported" : "Success"; }
EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int* version) { return *version = 13000, SUCCESS; }
EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char* text, unsigned length) { return snprintf(text, length, "580.82.07"), SUCCESS; }
EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned* count) { return *count = unsigned(gpus_of_node()), SUCCESS; }
EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, Handle* device) {
  if (int(index) >= gpus_of_node()) return INVALID_ARGUMENT;
  return *device = index + 1, SUCCESS;
}
EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char* address, Handle* device) {
  for (int gpu = 0; gpu < gpus_of_node(); gpu++) {
    char own[16];
    snprintf(own, sizeof own, ":%02x:", unsigned(bus_of_gpu(gpu)));
    if (strcasestr(address, own)) return *device = Handle(gpu + 1), SUCCESS;
  }
  return NOT_FOUND;
}
EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char* uuid, Handle* device) {
  for (int gpu = 0; gpu < gpus_of_node(); gpu++)
    if (uuid_text(gpu) == uuid) return *device = Handle(gpu + 1), SUCCESS;
  return NOT_FOUND;
}
EXPORT nvmlReturn_t nvmlDeviceGetName(Handle, char* name, unsigned length) { return snprintf(name, length, "%s", GPU_NAME), SUCCESS; }
EXPORT nvmlReturn_t nvmlDeviceGetUUID(Handle device, char* uuid, unsigned length) {
  return snprintf(uuid, length, "%s", uuid_text(int(device) - 1).c_str()), SUCCESS;
}
struct Memory {
  unsigned long long total, free, used;
};
EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(Handle device, Memory* memory) {
  size_t total = memory_of_gpu(), used = std::min(total, memory_table->used(int(device) - 1));
  *memory = {total, total - used, used};
  return SUCCESS;
}
EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(Handle, unsigned rates[2]) { return rates[0] = rates[1] = 0, SUCCESS; }
EXPORT nvmlReturn_t nvmlDeviceGetPowerUsage(Handle, unsigned* milliwatts) { return *milliwatts = 70000, SUCCESS; }
EXPORT nvmlReturn_t nvmlDeviceGetTemperature(Handle, int, unsigned* celsius) { return *celsius = 31, SUCCESS; }

struct ProcessInfo {  // nvmlProcessInfo_v1_t: the unversioned function fills these
  unsigned pid;
  unsigned long long bytes;
};
EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(Handle device, unsigned* count, ProcessInfo* processes) {
  unsigned room = *count, number = 0;
  for (int i = 0; memory_table->rows && i < MemoryTable::ROWS && number < room; i++) {
    MemoryUse& row = memory_table->rows[i];
    if (MemoryTable::is_alive(row.pid) && row.bytes[device - 1]) processes[number++] = {unsigned(row.pid), row.bytes[device - 1]};
  }
  return *count = number, SUCCESS;
}
EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(Handle, unsigned, int*) { return NOT_SUPPORTED; }
EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(Handle, unsigned, void*) { return NOT_SUPPORTED; }
EXPORT nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(Handle, void*) { return NOT_SUPPORTED; }
