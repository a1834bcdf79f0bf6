#pragma once

#include <cstdint>

// DLPack's interface for programs in C (dmlc/dlpack, version 1), as far as it is used here: a table
// of functions that a library of arrays hands out in a capsule. Its layout stays within a major
// version.

namespace cairn::python::dlpack {

inline constexpr std::uint32_t kMajor = 1;
inline constexpr const char* kCapsuleName = "dlpack_exchange_api";

struct Version {
  std::uint32_t major;
  std::uint32_t minor;
};

struct Device {
  std::int32_t type;
  std::int32_t id;
};
inline constexpr std::int32_t kCpu = 1;

struct DataType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};

struct Tensor {
  void* data;
  Device device;
  std::int32_t ndim;
  DataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;  // of elements
  std::uint64_t byte_offset;
};

struct ExchangeApi {
  Version version;
  ExchangeApi* previous;  // of an older major version
  void* allocator;
  void* managed_tensor_from_object;
  void* managed_tensor_to_object;
  /// 0, or -1 with a Python exception. What `out` points to is the object's. May be null.
  int (*tensor_from_object)(void* object, Tensor* out);
};

}  // namespace cairn::python::dlpack
