#include "storage/memory/paged_bytes.h"

#include <algorithm>
#include <atomic>
#include <cstring>

namespace cairn {
namespace {

std::uint64_t NewToken() {
  static std::atomic<std::uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

PagedBytes::PagedBytes() : token_(NewToken()) {}

PagedBytes::PagedBytes(const PagedBytes& frozen)
    : token_(NewToken()), size_(frozen.size_), pages_(frozen.pages_) {}

PagedBytes& PagedBytes::operator=(const PagedBytes& frozen) {
  if (this == &frozen) return *this;
  token_ = NewToken();
  size_ = frozen.size_;
  pages_ = frozen.pages_;
  return *this;
}

PagedBytes PagedBytes::Share() {
  token_ = NewToken();
  return *this;
}

std::size_t PagedBytes::Read(std::uint64_t offset, std::span<std::byte> into) const {
  if (offset >= size_) return 0;
  const auto total = static_cast<std::size_t>(std::min<std::uint64_t>(into.size(), size_ - offset));
  std::size_t done = 0;
  while (done < total) {
    const std::uint64_t at = offset + done;
    const auto index = static_cast<std::size_t>(at / kPageBytes);
    const auto inside = static_cast<std::size_t>(at % kPageBytes);
    const std::size_t count = std::min(total - done, kPageBytes - inside);
    if (index < pages_.size() && pages_[index] != nullptr) {
      std::memcpy(into.data() + done, pages_[index]->bytes.data() + inside, count);
    } else {
      std::memset(into.data() + done, 0, count);
    }
    done += count;
  }
  return total;
}

PagedBytes::Page& PagedBytes::WritablePage(std::size_t index) {
  if (index >= pages_.size()) pages_.resize(index + 1);
  std::shared_ptr<Page>& page = pages_[index];
  if (page == nullptr) {
    page = std::make_shared<Page>();
    page->owner = token_;
  } else if (page->owner != token_) {
    page = std::make_shared<Page>(*page);
    page->owner = token_;
  }
  return *page;
}

void PagedBytes::Write(std::uint64_t offset, std::span<const std::byte> bytes) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const std::uint64_t at = offset + done;
    const auto inside = static_cast<std::size_t>(at % kPageBytes);
    const std::size_t count = std::min(bytes.size() - done, kPageBytes - inside);
    Page& page = WritablePage(static_cast<std::size_t>(at / kPageBytes));
    std::memcpy(page.bytes.data() + inside, bytes.data() + done, count);
    done += count;
  }
  if (!bytes.empty()) size_ = std::max(size_, offset + bytes.size());
}

void PagedBytes::Resize(std::uint64_t bytes) {
  if (bytes < size_) {
    const auto whole = static_cast<std::size_t>((bytes + kPageBytes - 1) / kPageBytes);
    if (whole < pages_.size()) pages_.resize(whole);
    // What is cut off must not come back when the array grows again.
    const auto inside = static_cast<std::size_t>(bytes % kPageBytes);
    if (inside != 0 && whole == pages_.size() && pages_[whole - 1] != nullptr) {
      Page& last = WritablePage(whole - 1);
      std::memset(last.bytes.data() + inside, 0, kPageBytes - inside);
    }
  }
  size_ = bytes;
}

}  // namespace cairn
