// Modules, functions and launches.
//
// A module is checked like a real one as far as names go: a function is found in it only if its image, a cubin or PTX,
// has a kernel of that name. What runs is the emulated kernel.
#include <elf.h>

#include <string_view>

#include "driver.h"

namespace fake {

namespace {

constexpr int kDefaultSharedBytes = 48 << 10, kMaxSharedBytes = 166912;  // of sm_80
constexpr int kMaxDynamicSharedAttribute = 8;

struct Module;

struct Function {
  const std::string* name;
  const cusim::Kernel* kernel;
  int max_dynamic_bytes = kDefaultSharedBytes;
};

struct Module {
  std::string image;
  std::map<std::string, Function, std::less<>> functions;
};

// Images of tests that bring no kernels: every kernel of the emulator is in them.
constexpr std::string_view kAnyKernel = "cusim";

size_t elf_bytes(const Elf64_Ehdr& header) {
  const size_t sections = header.e_shoff + static_cast<size_t>(header.e_shnum) * header.e_shentsize;
  const size_t segments = header.e_phoff + static_cast<size_t>(header.e_phnum) * header.e_phentsize;
  return std::max(sections, segments);
}

// A copy of the image, empty if it is none.
std::string image_at(const void* data) {
  const auto* text = static_cast<const char*>(data);
  if (memcmp(text, ELFMAG, SELFMAG) == 0) {
    Elf64_Ehdr header;
    memcpy(&header, data, sizeof header);
    constexpr int kCuda = 190;
    return header.e_machine == kCuda ? std::string(text, elf_bytes(header)) : "";
  }
  const std::string copy(text);
  const bool is_ptx = copy.find(".version ") != std::string::npos && copy.find(".target ") != std::string::npos;
  return is_ptx || copy == kAnyKernel ? copy : "";
}

bool has_kernel(const std::string& image, const std::string& name) {
  if (image == kAnyKernel) return true;
  if (image.starts_with(ELFMAG)) {
    const std::string section = ".text." + name;
    return image.find(std::string_view(section.c_str(), section.size() + 1)) != std::string::npos;
  }
  return image.find(".entry " + name + "(") != std::string::npos;
}

struct Shape {
  dim3 grid, block;
  unsigned dynamic_bytes;
};

Result run_kernel(Device& device, const Function& function, const Shape& shape,
                  const std::vector<std::vector<unsigned char>>& arguments) {
  ++device.n_kernels_run;
  if (device.kernel_fault.strikes()) {
    device.failure = *function.name + ": failed on request";
    return device.kernel_fault.error;
  }
  std::vector<void*> pointers;
  for (const auto& argument : arguments) pointers.push_back(const_cast<unsigned char*>(argument.data()));
  std::string error = function.kernel->run(shape.grid, shape.block, shape.dynamic_bytes, pointers.data());
  const bool is_overrun = error.empty();
  if (is_overrun) error = damaged_guard(device);
  if (error.empty()) return kSuccess;
  device.failure = *function.name + ": " + error;
  fprintf(stderr, "cusim: %s\n", device.failure.c_str());
  return is_overrun ? kIllegalAddress : kLaunchFailed;
}

Result launch(const Function& function, const Shape& shape, void* handle, void** arguments) {
  Guard guard(mutex());
  Stream* stream = stream_of(handle);
  if (!stream) return kInvalidContext;
  Device& device = *stream->device;
  if (device.sticky) return device.sticky;
  ++device.n_launches;
  if (device.launch_fault.strikes()) return device.launch_fault.error;
  if (!cusim::refuse(shape.grid, shape.block, shape.dynamic_bytes).empty()) return kInvalidValue;
  if (shape.dynamic_bytes > static_cast<unsigned>(function.max_dynamic_bytes)) return kInvalidValue;
  // The driver copies arguments at the launch.
  std::vector<std::vector<unsigned char>> copies;
  for (size_t i = 0; i < function.kernel->argument_bytes.size(); ++i) {
    const auto* argument = static_cast<const unsigned char*>(arguments[i]);
    copies.emplace_back(argument, argument + function.kernel->argument_bytes[i]);
  }
  return submit(handle, [function, shape, &device, copies = std::move(copies)] {
    return run_kernel(device, function, shape, copies);
  });
}

Result load(void** module, const void* data) {
  Guard guard(mutex());
  if (const Result error = state_of(current_device())) return error;
  if (const Result refused = forbid_while_capturing()) return refused;
  std::string image = image_at(data);
  if (image.empty()) return kInvalidImage;
  *module = new Module{std::move(image), {}};
  return kSuccess;
}

// As cuLaunchKernelEx takes it.
struct LaunchConfig {
  unsigned grid[3], block[3];
  unsigned dynamic_bytes;
  void* stream;
  void* attributes;
  unsigned n_attributes;
};

}  // namespace

}  // namespace fake

using namespace fake;

CUSIM_API Result cuModuleLoadData(void** module, const void* image) { return load(module, image); }
CUSIM_API Result cuModuleLoadDataEx(void** module, const void* image, unsigned, int*, void**) {
  return load(module, image);
}

CUSIM_API Result cuModuleUnload(void* module) {
  Guard guard(mutex());
  delete static_cast<Module*>(module);
  return kSuccess;
}

CUSIM_API Result cuModuleGetFunction(void** function, void* module_handle, const char* name) {
  Guard guard(mutex());
  auto* module = static_cast<Module*>(module_handle);
  const auto kernel = cusim::registry().find(name);
  if (kernel == cusim::registry().end() || !has_kernel(module->image, name)) return kNotFound;
  const auto entry = module->functions.try_emplace(name, Function{&kernel->first, &kernel->second}).first;
  *function = &entry->second;
  return kSuccess;
}

CUSIM_API Result cuModuleGetGlobal_v2(Pointer*, size_t*, void*, const char*) { return kNotFound; }

CUSIM_API Result cuFuncSetAttribute(void* function, int attribute, int value) {
  Guard guard(mutex());
  if (attribute != kMaxDynamicSharedAttribute) return kSuccess;
  if (value < 0 || value > kMaxSharedBytes) return kInvalidValue;
  static_cast<Function*>(function)->max_dynamic_bytes = value;
  return kSuccess;
}

CUSIM_API Result cuFuncGetAttribute(int* value, int attribute, void* function) {
  Guard guard(mutex());
  constexpr int kMaxThreads = 0, kRegisters = 4, kPtxVersion = 5, kBinaryVersion = 6;
  switch (attribute) {
    case kMaxThreads: *value = cusim::kMaxThreads; break;
    case kRegisters: *value = 64; break;
    case kPtxVersion: case kBinaryVersion: *value = 80; break;
    case kMaxDynamicSharedAttribute: *value = static_cast<Function*>(function)->max_dynamic_bytes; break;
    default: *value = 0;
  }
  return kSuccess;
}

CUSIM_API Result cuFuncSetCacheConfig(void*, int) { return kSuccess; }

CUSIM_API Result cuLaunchKernel(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                                unsigned block_y, unsigned block_z, unsigned dynamic_bytes, void* stream,
                                void** arguments, void**) {
  const Shape shape{dim3(grid_x, grid_y, grid_z), dim3(block_x, block_y, block_z), dynamic_bytes};
  return launch(*static_cast<Function*>(function), shape, stream, arguments);
}

CUSIM_API Result cuLaunchKernelEx(const LaunchConfig* config, void* function, void** arguments, void**) {
  const unsigned *grid = config->grid, *block = config->block;
  const Shape shape{dim3(grid[0], grid[1], grid[2]), dim3(block[0], block[1], block[2]), config->dynamic_bytes};
  return launch(*static_cast<Function*>(function), shape, config->stream, arguments);
}

// By threads and shared memory of sm_80; registers are not known here.
CUSIM_API Result cuOccupancyMaxActiveBlocksPerMultiprocessor(int* n_blocks, void*, int block_size,
                                                             size_t dynamic_bytes) {
  const int by_threads = 2048 / std::max(block_size, 1);
  const int by_memory = dynamic_bytes ? static_cast<int>(167936 / (dynamic_bytes + 1024)) : 32;
  *n_blocks = std::min({by_threads, by_memory, 32});
  return kSuccess;
}
CUSIM_API Result cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* n_blocks, void* function, int block_size,
                                                                      size_t dynamic_bytes, unsigned) {
  return cuOccupancyMaxActiveBlocksPerMultiprocessor(n_blocks, function, block_size, dynamic_bytes);
}
