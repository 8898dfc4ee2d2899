// The GPUs that the stand-ins pretend: NVIDIA H100 as nvidia-smi shows them, with less memory.
//
//   CUDA_STANDIN_GPUS        GPUs of a node (2)
//   CUDA_STANDIN_MEMORY_MIB  memory of each (4096)
//
// Processes of a node share a table of the memory that each uses, so that a GPU can be full of another's data.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <string>

constexpr const char* GPU_NAME = "NVIDIA H100 80GB HBM3";
constexpr int MOST_GPUS = 16;

inline int number_from(const char* variable, int otherwise) {
  const char* text = getenv(variable);
  return text && *text ? atoi(text) : otherwise;
}

inline int gpus_of_node() { return std::min(number_from("CUDA_STANDIN_GPUS", 2), MOST_GPUS); }
inline size_t memory_of_gpu() { return size_t(number_from("CUDA_STANDIN_MEMORY_MIB", 4096)) << 20; }
// The bus numbers of an HGX board, as the lab's nvidia-smi shows them.
inline int bus_of_gpu(int gpu) {
  constexpr int buses[] = {0x1b, 0x29, 0x45, 0x4e, 0x9b, 0xab, 0xbb, 0xcb};
  return gpu < 8 ? buses[gpu] : 0xd0 + gpu;
}
inline void uuid_of_gpu(int gpu, unsigned char bytes[16]) {
  char host[64] = "";
  gethostname(host, sizeof host - 1);
  for (int i = 0; i < 16; i++) bytes[i] = (unsigned char)(host[i] * 31 + i * 7);
  bytes[15] = (unsigned char)gpu;
}
inline std::string uuid_text(int gpu) {
  unsigned char b[16];
  uuid_of_gpu(gpu, b);
  char text[64];
  snprintf(text, sizeof text, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1], b[2], b[3],
           b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
  return text;
}

struct MemoryUse {
  std::atomic<int> pid;  // 0: the row is free
  std::atomic<size_t> bytes[MOST_GPUS];
};

// The table of this node; rows of processes that ended count no more.
struct MemoryTable {
  static constexpr int ROWS = 256;
  MemoryUse* rows = nullptr;

  MemoryTable() {
    char host[256] = "";
    gethostname(host, sizeof host - 1);
    std::string path = "/dev/shm/cuda-standin-" + std::to_string(getuid()) + "-" + host;
    int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || ftruncate(file, sizeof(MemoryUse) * ROWS)) return;
    void* memory = mmap(nullptr, sizeof(MemoryUse) * ROWS, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (memory != MAP_FAILED) rows = static_cast<MemoryUse*>(memory);
  }

  static bool is_alive(int pid) { return pid > 0 && (kill(pid, 0) == 0 || errno == EPERM); }

  // Return the row of this process; nullptr without a table or a free row.
  MemoryUse* own_row() {
    for (int i = 0; rows && i < ROWS; i++) {
      int pid = rows[i].pid;
      if (pid == getpid()) return &rows[i];
      if (!is_alive(pid) && rows[i].pid.compare_exchange_strong(pid, getpid())) {
        for (auto& bytes : rows[i].bytes) bytes = 0;
        return &rows[i];
      }
    }
    return nullptr;
  }

  size_t used(int gpu) {
    size_t sum = 0;
    for (int i = 0; rows && i < ROWS; i++)
      if (is_alive(rows[i].pid)) sum += rows[i].bytes[gpu];
    return sum;
  }
};
