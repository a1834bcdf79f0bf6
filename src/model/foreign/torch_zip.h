#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include <cairn/status.h>

#include "model/foreign/foreign_tensor.h"

namespace cairn {

/// The tensors of a file that torch.save wrote (the zip format of torch 1.6 and later). Names are
/// the keys of the saved dict, nested ones joined with '/'. Views become row-major arrays of their
/// own. Corruption, naming it, for an entry whose bytes are not those of its checksum; files that
/// torch wrote without checksums (set_crc32_options) are taken as they are.
Result<std::vector<ForeignTensor>> DecodeTorchZip(std::span<const std::byte> bytes);
/// The same without comparing checksums: for fuzzing, which none of them would survive.
Result<std::vector<ForeignTensor>> DecodeTorchZipUnverified(std::span<const std::byte> bytes);

}  // namespace cairn
