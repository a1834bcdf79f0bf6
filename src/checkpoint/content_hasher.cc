#include "checkpoint/content_hasher.h"

#include <algorithm>

namespace cairn {
namespace {

// All hashes are taken while the bytes are in the second-level cache: only the first reads memory.
constexpr std::size_t kPieceBytes = 64u << 10;

}  // namespace

ContentHasher::ContentHasher(const PlannedFile& file, bool tensors)
    : file_(file), each_(tensors && !file.own_file) {
  tensors_.reserve(file.tensors.size());
}

void ContentHasher::Update(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto piece = bytes.first(std::min(bytes.size(), kPieceBytes));
    whole_.Update(piece);
    if (each_) UpdateTensors(piece);
    position_ += piece.size();
    bytes = bytes.subspan(piece.size());
  }
}

void ContentHasher::UpdateTensors(std::span<const std::byte> bytes) {
  const std::uint64_t end = position_ + bytes.size();
  while (tensors_.size() < file_.tensors.size()) {
    const PlannedTensor& tensor = file_.tensors[tensors_.size()];
    const std::uint64_t tensor_end = tensor.file_offset + tensor.bytes;
    const std::uint64_t from = std::max(position_, tensor.file_offset);
    const std::uint64_t to = std::min(end, tensor_end);
    if (from < to || tensor.bytes == 0) {
      const auto part = tensor.bytes == 0 ? std::span<const std::byte>()
                                          : bytes.subspan(from - position_, to - from);
      if (part.size() == tensor.bytes) {
        tensors_.push_back(Xxh3(part));
        continue;
      }
      open_.Update(part);
    }
    if (tensor_end > end) return;
    tensors_.push_back(open_.Finish());
  }
}

FileHash ContentHasher::Finish() {
  FileHash hash = whole_.Finish();
  if (file_.own_file) {
    tensors_.assign(file_.tensors.size(), hash.whole.low);
  } else if (each_) {
    UpdateTensors({});  // tensors without bytes at the end of a file
  }
  position_ = 0;
  return hash;
}

}  // namespace cairn
