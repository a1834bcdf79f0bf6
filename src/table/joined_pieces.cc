#include "table/joined_pieces.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "base/status_macros.h"

namespace cairn::table {

TableFacts FactsOf(const TableSummary& summary) {
  return {.name = summary.name,
          .dim = summary.dim,
          .dtype = summary.dtype,
          .rows = summary.rows,
          .deleted = summary.deleted,
          .held = {summary.held}};
}

/// One source after the other.
class JoinedPieces::Source final : public TensorSource {
 public:
  void Add(TensorSource* source, std::uint64_t bytes) { parts_.push_back({source, bytes}); }

  Status Fill(std::uint64_t offset, std::span<std::byte> into) override {
    for (const Part& part : parts_) {
      if (offset >= part.bytes) {
        offset -= part.bytes;
        continue;
      }
      const std::size_t n = std::min<std::uint64_t>(into.size(), part.bytes - offset);
      RETURN_IF_ERROR(part.source->Fill(offset, into.first(n)));
      into = into.subspan(n);
      if (into.empty()) return Status::Ok();
      offset = 0;
    }
    return into.empty() ? Status::Ok() : InternalError("read behind the end of joined pieces");
  }
  void Abandoned() override {
    for (const Part& part : parts_) part.source->Abandoned();
  }

 private:
  struct Part {
    TensorSource* source;
    std::uint64_t bytes;
  };
  std::vector<Part> parts_;
};

JoinedPieces::JoinedPieces(std::vector<TableCut*> pieces) : pieces_(std::move(pieces)) {}
JoinedPieces::~JoinedPieces() = default;

TableFacts JoinedPieces::facts() const {
  TableFacts facts = FactsOf(pieces_.front()->summary());
  for (std::size_t i = 1; i < pieces_.size(); ++i) {
    facts.rows += pieces_[i]->summary().rows;
    facts.held.push_back(pieces_[i]->summary().held);
  }
  return facts;
}

std::vector<Tensor> JoinedPieces::Tensors() {
  std::vector<Tensor> joined = pieces_.front()->Tensors();
  sources_.clear();
  for (std::size_t c = 0; c < joined.size(); ++c) sources_.push_back(std::make_unique<Source>());
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    const std::vector<Tensor> columns = pieces_[i]->Tensors();
    for (std::size_t c = 0; c < columns.size(); ++c) {
      std::uint64_t bytes = static_cast<std::uint64_t>(DTypeBits(columns[c].dtype)) / 8;
      for (const std::uint64_t extent : columns[c].shape) bytes *= extent;
      sources_[c]->Add(columns[c].source, bytes);
      if (i > 0) joined[c].shape[0] += columns[c].shape[0];
    }
  }
  for (std::size_t c = 0; c < joined.size(); ++c) joined[c].source = sources_[c].get();
  return joined;
}

}  // namespace cairn::table
