#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include <cairn/dtype.h>
#include <cairn/scope.h>
#include <cairn/status.h>

namespace cairn {

/// InvalidArgument for an initializer that makes no sense (an upper end below the lower one, a
/// negative or non-finite deviation), or that the dtype cannot hold.
Status ValidateInitializer(const VariableInitializer& initializer, DType dtype);

/// Fills a variable's memory: each element a pure function of (seed, name, its number).
Status FillInitial(const VariableInitializer& initializer, std::uint64_t seed,
                   std::string_view name, DType dtype, std::span<std::byte> memory);

}  // namespace cairn
