// Modules, functions and launches.
//
// As in a real driver, a module has a function only if its image, a cubin or PTX, has a kernel of that name. The
// emulated kernel runs instead of the image's. The limit of shared memory applies to the image's static bytes and the
// launch's dynamic bytes together.
#include <elf.h>

#include <string_view>

#include "driver.h"

namespace fake {

namespace {

// Shared memory of a block on sm_80: the default limit, and the largest limit that a kernel may request.
constexpr unsigned kDefaultSharedBytes = 48 << 10, kMaxSharedBytes = 166912;
constexpr int kStaticSharedAttribute = 1, kMaxDynamicSharedAttribute = 8;

struct Module;

struct Function {
  const std::string* name;
  const cusim::Kernel* kernel;
  Device* device;
  unsigned static_bytes;
  unsigned max_dynamic_bytes = static_bytes < kDefaultSharedBytes ? kDefaultSharedBytes - static_bytes : 0;
};

struct Module {
  Device* device;
  std::string image;
  std::map<std::string, Function, std::less<>> functions;
};

// The image of tests that compile no kernels. A module made from it has every kernel of the emulator.
constexpr std::string_view kAnyKernel = "cusim";

size_t elf_bytes(const Elf64_Ehdr& header) {
  const size_t sections = header.e_shoff + static_cast<size_t>(header.e_shnum) * header.e_shentsize;
  const size_t segments = header.e_phoff + static_cast<size_t>(header.e_phnum) * header.e_phentsize;
  return std::max(sections, segments);
}

// A copy of the image; empty if `data` is no image.
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

// The size of a section of a cubin; 0 if the cubin has no such section.
unsigned section_bytes(const std::string& image, const std::string& name) {
  Elf64_Ehdr header;
  memcpy(&header, image.data(), sizeof header);
  auto section = [&](size_t index) {
    Elf64_Shdr found;
    memcpy(&found, image.data() + header.e_shoff + index * header.e_shentsize, sizeof found);
    return found;
  };
  const char* names = image.data() + section(header.e_shstrndx).sh_offset;
  for (size_t i = 0; i < header.e_shnum; ++i)
    if (names + section(i).sh_name == name) return static_cast<unsigned>(section(i).sh_size);
  return 0;
}

unsigned number_after(std::string_view line, std::string_view word) {
  const size_t at = line.find(word);
  return at == line.npos ? 0 : static_cast<unsigned>(strtoul(line.data() + at + word.size(), nullptr, 10));
}

unsigned round_up(unsigned bytes, unsigned alignment) { return (bytes + alignment - 1) / alignment * alignment; }

// Shared bytes that a kernel in PTX declares, rounded up to the alignment of the module's dynamic shared memory.
unsigned ptx_shared_bytes(const std::string& ptx, const std::string& name) {
  unsigned bytes = 0, alignment = 1;
  bool is_inside = false;
  for (size_t start = 0; start < ptx.size();) {
    const size_t end = std::min(ptx.find('\n', start), ptx.size());
    const std::string_view line(ptx.data() + start, end - start);
    start = end + 1;
    if (line.find(".entry " + name + "(") != line.npos) is_inside = true;
    if (line.starts_with("}")) is_inside = false;
    const size_t declared = line.find(".shared .align ");
    if (declared == line.npos) continue;
    const unsigned of_line = number_after(line, ".align ");
    if (line.find(".extern") != line.npos) alignment = std::max(alignment, of_line);
    if (!is_inside) continue;
    bytes = round_up(bytes, of_line) + number_after(line, "[");
  }
  return round_up(bytes, alignment);
}

unsigned static_bytes(const std::string& image, const std::string& name) {
  if (image.starts_with(ELFMAG)) return section_bytes(image, ".nv.shared." + name);
  if (image != kAnyKernel) return ptx_shared_bytes(image, name);
  const auto found = static_shared_bytes().find(name);
  return found == static_shared_bytes().end() ? 0 : found->second;
}

struct Shape {
  dim3 grid, block;
  unsigned dynamic_bytes;
};

using Arguments = std::vector<std::vector<unsigned char>>;

// Names an argument that holds an address of another device's memory, to which the device has no access; an empty
// string if there is none. Addresses in device memory are not checked.
std::string foreign_argument(const Device& device, const Arguments& arguments) {
  for (size_t i = 0; i < arguments.size(); ++i)
    for (size_t at = 0; at + sizeof(Pointer) <= arguments[i].size(); at += sizeof(Pointer)) {
      Pointer address;
      memcpy(&address, arguments[i].data() + at, sizeof address);
      const Device* owner = owner_of(address);
      if (owner && owner != &device && !device.peers.contains(owner))
        return "argument " + std::to_string(i) + " is in memory of device " + std::to_string(owner->ordinal);
    }
  return "";
}

Result run_kernel(Device& device, const Function& function, const Shape& shape, const Arguments& arguments) {
  ++device.n_kernels_run;
  if (device.lasting_fault.strikes()) device.lasting = device.lasting_fault.error;
  const Result planned = device.kernel_fault.strikes() ? device.kernel_fault.error : device.lasting;
  if (planned) {
    device.failure = *function.name + ": failed on request";
    return planned;
  }
  if (const std::string foreign = foreign_argument(device, arguments); !foreign.empty()) {
    device.failure = *function.name + ": " + foreign;
    fprintf(stderr, "cusim: %s\n", device.failure.c_str());
    return kIllegalAddress;
  }
  std::vector<void*> pointers;
  for (const auto& argument : arguments) pointers.push_back(const_cast<unsigned char*>(argument.data()));
  std::string error = run_unguarded(device, [&] {
    return function.kernel->run(shape.grid, shape.block, shape.dynamic_bytes, pointers.data());
  });
  const bool is_overrun = error.empty();
  if (is_overrun) error = damaged_guard(device);
  if (error.empty()) return kSuccess;
  device.failure = *function.name + ": " + error;
  fprintf(stderr, "cusim: %s\n", device.failure.c_str());
  return is_overrun ? kIllegalAddress : kLaunchFailed;
}

Result launch(const Function& function, const Shape& shape, void* handle, void** arguments) {
  Guard guard;
  Stream* stream = stream_of(handle);
  if (!stream) return kInvalidContext;
  Device& device = *stream->device;
  if (device.sticky) return device.sticky;
  if (function.device != &device) return kInvalidHandle;
  ++device.n_launches;
  if (device.launch_fault.strikes()) return device.launch_fault.error;
  if (!cusim::refuse(shape.grid, shape.block, shape.dynamic_bytes).empty()) return kInvalidValue;
  if (shape.dynamic_bytes > function.max_dynamic_bytes) return kInvalidValue;
  // The driver copies arguments at the launch.
  Arguments copies;
  for (size_t i = 0; i < function.kernel->argument_bytes.size(); ++i) {
    const auto* argument = static_cast<const unsigned char*>(arguments[i]);
    copies.emplace_back(argument, argument + function.kernel->argument_bytes[i]);
  }
  return submit(handle, [function, shape, &device, copies = std::move(copies)] {
    return run_kernel(device, function, shape, copies);
  });
}

Result load(void** module, const void* data) {
  Guard guard;
  if (const Result error = state_of(current_device())) return error;
  if (const Result refused = forbid_while_capturing()) return refused;
  std::string image = image_at(data);
  if (image.empty()) return kInvalidImage;
  ++current_device()->n_modules;
  *module = new Module{current_device(), std::move(image), {}};
  return kSuccess;
}

// The layout that cuLaunchKernelEx reads.
struct LaunchConfig {
  unsigned grid[3], block[3];
  unsigned dynamic_bytes;
  void* stream;
  const struct LaunchAttribute* attributes;
  unsigned n_attributes;
};

struct LaunchAttribute {
  int id;
  char pad[4];
  union {
    char bytes[64];
    int may_begin_early;
  };
};

}  // namespace

}  // namespace fake

using namespace fake;

CUSIM_API Result cuModuleLoadData(void** module, const void* image) { return load(module, image); }
CUSIM_API Result cuModuleLoadDataEx(void** module, const void* image, unsigned, int*, void**) {
  return load(module, image);
}

CUSIM_API Result cuModuleUnload(void* module) {
  Guard guard;
  delete static_cast<Module*>(module);
  return kSuccess;
}

CUSIM_API Result cuModuleGetFunction(void** function, void* module_handle, const char* name) {
  Guard guard;
  auto* module = static_cast<Module*>(module_handle);
  const auto kernel = cusim::registry().find(name);
  if (kernel == cusim::registry().end() || !has_kernel(module->image, name)) return kNotFound;
  const Function found{&kernel->first, &kernel->second, module->device, static_bytes(module->image, name)};
  const auto entry = module->functions.try_emplace(name, found).first;
  *function = &entry->second;
  return kSuccess;
}

CUSIM_API Result cuModuleGetGlobal_v2(Pointer*, size_t*, void*, const char*) { return kNotFound; }

CUSIM_API Result cuFuncSetAttribute(void* handle, int attribute, int value) {
  Guard guard;
  if (attribute != kMaxDynamicSharedAttribute) return kSuccess;
  auto* function = static_cast<Function*>(handle);
  if (value < 0 || function->static_bytes + static_cast<unsigned>(value) > kMaxSharedBytes) return kInvalidValue;
  if (!function->device->attribute_fault.strikes()) function->max_dynamic_bytes = static_cast<unsigned>(value);
  return kSuccess;
}

CUSIM_API Result cuFuncGetAttribute(int* value, int attribute, void* handle) {
  Guard guard;
  const auto* function = static_cast<const Function*>(handle);
  constexpr int kMaxThreads = 0, kRegisters = 4, kPtxVersion = 5, kBinaryVersion = 6;
  switch (attribute) {
    case kMaxThreads: *value = cusim::kMaxThreads; break;
    case kRegisters: *value = 64; break;
    case kPtxVersion: case kBinaryVersion: *value = function->device->capability; break;
    case kStaticSharedAttribute: *value = static_cast<int>(function->static_bytes); break;
    case kMaxDynamicSharedAttribute: *value = static_cast<int>(function->max_dynamic_bytes); break;
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
  constexpr int kProgrammaticStreamSerialization = 6;
  const unsigned *grid = config->grid, *block = config->block;
  for (unsigned i = 0; i < config->n_attributes; ++i) {
    const LaunchAttribute& attribute = config->attributes[i];
    if (attribute.id != kProgrammaticStreamSerialization || attribute.may_begin_early != 1) return kInvalidValue;
    ++static_cast<Function*>(function)->device->n_early_launches;
  }
  const Shape shape{dim3(grid[0], grid[1], grid[2]), dim3(block[0], block[1], block[2]), config->dynamic_bytes};
  return launch(*static_cast<Function*>(function), shape, config->stream, arguments);
}

// The limit by threads and shared memory of sm_80. The emulator does not know registers.
CUSIM_API Result cuOccupancyMaxActiveBlocksPerMultiprocessor(int* n_blocks, void* function, int block_size,
                                                             size_t dynamic_bytes) {
  const int by_threads = 2048 / std::max(block_size, 1);
  const size_t shared_bytes = static_cast<const Function*>(function)->static_bytes + dynamic_bytes;
  const int by_memory = shared_bytes ? static_cast<int>(167936 / (shared_bytes + 1024)) : 32;
  *n_blocks = std::min({by_threads, by_memory, 32});
  return kSuccess;
}
CUSIM_API Result cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* n_blocks, void* function, int block_size,
                                                                      size_t dynamic_bytes, unsigned) {
  return cuOccupancyMaxActiveBlocksPerMultiprocessor(n_blocks, function, block_size, dynamic_bytes);
}
