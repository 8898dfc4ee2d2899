// torch's CPU kernels under the dispatch key CUDA, so that models compute on the stand-in GPUs.
//
// Device memory of cudart.cpp is memory of the host. An operator on CUDA tensors waits for the current stream, runs
// torch's own CPU kernel on tensors that alias the same memory, and copies new results to the device. Operators that
// only make memory or views keep torch's CUDA code, and with it the allocator, the streams and their errors.

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/library.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "faults.h"

namespace {

using c10::DeviceType;
using c10::IValue;

// Operators that torch's CUDA code does without a kernel: memory, storage, streams.
const std::set<std::string> KEPT = {"aten::empty", "aten::empty_strided", "aten::set_", "aten::resize_", "aten::record_stream",
                                    "aten::is_pinned", "aten::_pin_memory", "aten::is_set_to", "aten::_efficientzerotensor"};
// Operators without a CUDA kernel of their own that would launch one.
const std::set<std::string> ADDED = {"aten::copy_", "aten::convolution", "aten::convolution_backward"};

bool is_on_gpu(const at::Tensor& tensor) { return tensor.defined() && tensor.is_cuda(); }

// One CUDA tensor of a call and the CPU tensor that takes its place.
struct Alias {
  at::Tensor gpu, cpu;
};

struct Call {
  std::vector<Alias> aliases;
  c10::Device device{DeviceType::CPU};

  // Return a CPU tensor over the memory of a CUDA tensor. Its storage can grow: a result may be resized.
  at::Tensor to_cpu(const at::Tensor& gpu) {
    if (!is_on_gpu(gpu)) return gpu;
    for (auto& alias : aliases)
      if (alias.gpu.is_same(gpu)) return alias.cpu;
    if (!device.is_cuda()) wait_for(gpu.device());
    device = gpu.device();
    auto& storage = gpu.storage();
    c10::Storage memory(c10::Storage::use_byte_size_t(), storage.nbytes(),
                        c10::DataPtr(storage.mutable_data(), c10::Device(DeviceType::CPU)), c10::GetAllocator(DeviceType::CPU), true);
    at::Tensor cpu = at::empty({0}, gpu.options().device(at::kCPU));
    cpu.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(memory));
    cpu.unsafeGetTensorImpl()->set_sizes_and_strides(gpu.sizes(), gpu.strides(), gpu.storage_offset());
    if (gpu.is_conj()) cpu._set_conj(true);
    if (gpu.is_neg()) cpu._set_neg(true);
    aliases.push_back({gpu, cpu});
    return cpu;
  }

  // Return the CUDA tensor for a result: the argument that it aliases, else a copy on the device.
  at::Tensor to_gpu(const at::Tensor& cpu) {
    if (!cpu.defined() || !cpu.device().is_cpu() || !device.is_cuda()) return cpu;
    for (auto& alias : aliases)
      if (alias.cpu.is_same(cpu)) return alias.gpu;
    at::Tensor gpu = at::empty_strided(cpu.sizes(), cpu.strides(), cpu.options().device(device));
    std::memcpy(gpu.mutable_data_ptr(), cpu.const_data_ptr(), gpu.storage().nbytes());
    return gpu;
  }

  // Give the size and the data of results that were resized to the CUDA tensors.
  void carry_back() {
    for (auto& alias : aliases) {
      bool has_moved = alias.cpu.storage().data() != alias.gpu.storage().data();
      if (!has_moved && alias.cpu.sizes() == alias.gpu.sizes() && alias.cpu.strides() == alias.gpu.strides()) continue;
      alias.gpu.resize_(alias.cpu.sizes());
      alias.gpu.unsafeGetTensorImpl()->set_sizes_and_strides(alias.cpu.sizes(), alias.cpu.strides(), alias.gpu.storage_offset());
      if (has_moved && alias.cpu.numel()) std::memcpy(alias.gpu.mutable_data_ptr(), alias.cpu.const_data_ptr(), alias.cpu.numel() * alias.cpu.itemsize());
    }
  }

  static void wait_for(c10::Device device) {
    c10::impl::VirtualGuardImpl guard(DeviceType::CUDA);
    guard.synchronizeStream(guard.getStream(device));
  }

  // Return a CPU generator that continues a CUDA generator: its seed and offset are the whole state.
  c10::optional<at::Generator> to_cpu(at::Generator gpu) {
    std::lock_guard<std::mutex> lock(gpu.mutex());
    uint64_t offset = gpu.get_offset();
    auto cpu = at::make_generator<at::CPUGeneratorImpl>(gpu.current_seed() * 6364136223846793005ull + offset);
    gpu.set_offset(offset + 4);
    return cpu;
  }

  IValue argument_to_cpu(const IValue& value) {
    if (value.isTensor()) return to_cpu(value.toTensor());
    if (value.isTensorList()) {
      c10::List<at::Tensor> tensors;
      for (const at::Tensor& tensor : value.toTensorVector()) tensors.push_back(to_cpu(tensor));
      return tensors;
    }
    if (value.isOptionalTensorList()) {
      c10::List<c10::optional<at::Tensor>> tensors;
      for (const c10::optional<at::Tensor>& tensor : value.toOptionalTensorVector())
        tensors.push_back(tensor ? c10::optional<at::Tensor>(to_cpu(*tensor)) : tensor);
      return tensors;
    }
    if (value.isDevice() && value.toDevice().is_cuda()) {
      device = value.toDevice();
      if (!device.has_index()) device = c10::impl::VirtualGuardImpl(DeviceType::CUDA).getDevice();
      return c10::Device(DeviceType::CPU);
    }
    return value;
  }

  IValue result_to_gpu(const IValue& value) {
    if (value.isTensor()) return to_gpu(value.toTensor());
    if (!value.isTensorList()) return value;
    c10::List<at::Tensor> tensors;
    for (const at::Tensor& tensor : value.toTensorVector()) tensors.push_back(to_gpu(tensor));
    return tensors;
  }
};

void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  size_t first = stack->size() - arguments.size();
  Call call;
  for (size_t i = 0; i < arguments.size(); i++) (*stack)[first + i] = call.argument_to_cpu((*stack)[first + i]);
  for (size_t i = 0; i < arguments.size(); i++) {
    if (arguments[i].name() != "generator" || !call.device.is_cuda()) continue;
    IValue& value = (*stack)[first + i];
    at::Generator given = value.isNone() ? at::globalContext().defaultGenerator(call.device) : value.toGenerator();
    if (given.device().is_cuda()) value = call.to_cpu(given);
  }
  {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  }
  call.carry_back();
  size_t results = op.schema().returns().size();
  for (size_t i = stack->size() - results; i < stack->size(); i++) (*stack)[i] = call.result_to_gpu((*stack)[i]);
}

// Benchmarks repeat large products. One into the same tensor, of operands that did not change, is there already. It
// takes a fixed time, long enough for a busy machine to measure. The fault "slow-gpu=0.6" makes it longer.
using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
struct Product {
  std::vector<WeakTensor> tensors;
  std::vector<uint32_t> versions;

  explicit Product(const at::Tensor* of) {
    for (int i = 0; i < 3; i++) tensors.emplace_back(of[i].getIntrusivePtr()), versions.push_back(of[i]._version());
    versions[2]++;  // torch counts this change of the result when the operator is over
  }
  bool is_of(const at::Tensor* of) const {
    for (int i = 0; i < 3; i++)
      if (tensors[i].lock().get() != of[i].unsafeGetTensorImpl() || versions[i] != of[i]._version()) return false;
    return true;
  }
};
constexpr int64_t LARGE_PRODUCT = int64_t(1) << 33;
constexpr double MULTIPLICATIONS_PER_SECOND = 2e13;

// Multiply matrices of small integers as such: four times as fast, and float32 holds the result exactly.
bool multiply_integers(const at::Tensor* gpu) {
  Call call;
  at::Tensor cpu[3], integers[2];
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  for (int i = 0; i < 3; i++) cpu[i] = call.to_cpu(gpu[i]);
  for (int i = 0; i < 2; i++) {
    if (cpu[i].scalar_type() != at::kFloat) return false;
    integers[i] = cpu[i].to(at::kChar);
    if (!integers[i].to(at::kFloat).equal(cpu[i])) return false;
  }
  cpu[2].copy_(at::_int_mm(integers[0], integers[1]));
  return true;
}

// aten::mm (two arguments) and aten::mm.out (three).
void run_product(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  size_t count = op.schema().arguments().size();
  at::Tensor tensors[3];
  for (size_t i = 0; i < count; i++) tensors[i] = (*stack)[stack->size() - count + i].toTensor();
  int64_t multiplications = tensors[1].dim() == 2 ? tensors[0].numel() * tensors[1].size(1) : 0;
  bool is_inference = std::any_of(tensors, tensors + count, [](const at::Tensor& tensor) { return tensor.is_inference(); });
  if (multiplications < LARGE_PRODUCT || is_inference) return run_on_cpu(op, stack);
  if (count == 2) tensors[2] = at::empty({tensors[0].size(0), tensors[1].size(1)}, tensors[0].options());

  static std::mutex& mutex = *new std::mutex;
  static std::unique_ptr<Product>& last = *new std::unique_ptr<Product>;
  std::lock_guard<std::mutex> lock(mutex);
  Call::wait_for(tensors[2].device());
  bool is_there = last && last->is_of(tensors);
  if (is_there) {
    double speed = 1;
    has_fault("slow-gpu", tensors[2].device().index(), &speed);
    usleep(useconds_t(1e6 * double(multiplications) / MULTIPLICATIONS_PER_SECOND / speed));
  } else if (!multiply_integers(tensors)) {
    return run_on_cpu(op, stack);
  }
  stack->resize(stack->size() - count);
  stack->push_back(tensors[2]);
  last = std::make_unique<Product>(tensors);
}

bool returns_view(const c10::FunctionSchema& schema) {
  for (auto& result : schema.returns())
    if (result.alias_info() && !result.alias_info()->isWrite()) return true;
  return false;
}

bool should_run_on_cpu(const c10::OperatorHandle& op) {
  const std::string& name = op.operator_name().name;
  if (name.rfind("aten::", 0) != 0 || KEPT.count(name) || !op.hasSchema() || returns_view(op.schema())) return false;
  if (ADDED.count(name)) return true;
  return op.hasKernelForDispatchKey(c10::DispatchKey::CUDA) &&
         (op.hasKernelForDispatchKey(c10::DispatchKey::CPU) || op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd));
}

// torch warns of each kernel that is replaced.
struct NoWarnings : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

struct Registration {
  torch::Library library{torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__};

  Registration() {
    NoWarnings silent;
    c10::WarningUtils::WarningHandlerGuard guard(&silent);
    auto& dispatcher = c10::Dispatcher::singleton();
    for (auto& name : dispatcher.getAllOpNames()) {
      auto op = dispatcher.findOp(name);
      if (!op || !should_run_on_cpu(*op)) continue;
      std::string full = name.name + (name.overload_name.empty() ? "" : "." + name.overload_name);
      bool is_product = full == "aten::mm.out" || full == "aten::mm";
      library.impl(full.c_str(), is_product ? torch::CppFunction::makeFromBoxedFunction<&run_product>()
                                            : torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
    }
  }
};

}  // namespace

// The Python entry point calls this once torch is loaded. It is never undone.
extern "C" void cuda_standin_register() { new Registration; }
