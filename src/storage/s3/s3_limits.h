#pragma once

#include <cstdint>

namespace cairn {

// What S3 takes: together they are the most that an object on AWS can have, 48.8 TiB.
inline constexpr std::uint64_t kS3Parts = 10'000;  // of an upload
inline constexpr std::uint64_t kS3RequestBytes = std::uint64_t{5} << 30;

/// For errors about objects that are too large.
inline constexpr char kS3ObjectLimit[] =
    "S3 stores objects of up to 5 TiB (AWS: 10,000 parts of 5 GiB, 48.8 TiB); save it as several "
    "tensors, or a table on more servers";

}  // namespace cairn
