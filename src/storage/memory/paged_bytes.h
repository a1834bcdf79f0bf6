#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace cairn {

/// A byte array in 4 KiB pages that copies share until one of them is written: snapshots of a
/// simulated disk cost a few pointers per file. Pages that were never written read as zeros.
///
/// Not synchronised. A page is written in place only by the object that made it, and only as long
/// as that object was not shared. The copy constructor therefore expects a source that nobody
/// writes any more; Share() copies one that goes on being written. Under that rule copies may be
/// read and written from different threads.
class PagedBytes {
 public:
  static constexpr std::size_t kPageBytes = 4096;

  PagedBytes();
  PagedBytes(const PagedBytes& frozen);
  PagedBytes& operator=(const PagedBytes& frozen);
  PagedBytes(PagedBytes&&) noexcept = default;
  PagedBytes& operator=(PagedBytes&&) noexcept = default;

  /// A copy, after which this object copies its pages before writing them.
  PagedBytes Share();

  std::uint64_t size() const { return size_; }
  /// Copies what lies at `offset`, fewer bytes only at the end; returns how many.
  std::size_t Read(std::uint64_t offset, std::span<std::byte> into) const;
  /// Grows the array when the bytes reach past its end.
  void Write(std::uint64_t offset, std::span<const std::byte> bytes);
  /// Cuts, or grows with zeros.
  void Resize(std::uint64_t bytes);

 private:
  struct Page {
    std::uint64_t owner = 0;
    std::array<std::byte, kPageBytes> bytes{};
  };

  Page& WritablePage(std::size_t index);

  std::uint64_t token_;  // pages with this owner are ours alone
  std::uint64_t size_ = 0;
  std::vector<std::shared_ptr<Page>> pages_;  // shared with copies; null or missing: zeros
};

}  // namespace cairn
