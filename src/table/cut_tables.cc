// A cut of several tables and arrays: all are asked first, then flipped while the gate is closed.
#include <utility>

#include <cairn/row_tracked.h>
#include <cairn/table.h>

#include "base/status_macros.h"
#include "table/row_tracked_cut.h"
#include "table/table_cut.h"

namespace cairn {
namespace {

using Members = std::vector<std::unique_ptr<table::CutMember>>;

Result<Members> MakeMembers(std::span<Table* const> tables, std::span<RowTracked* const> arrays,
                            const CutRequest& request) {
  Members members;
  for (Table* each : tables) {
    auto* known = dynamic_cast<table::TableImpl*>(each);
    if (known == nullptr) {
      return InvalidArgumentError("only tables made by Table::Make can be cut");
    }
    members.push_back(std::make_unique<table::TableCutImpl>(known, request));
  }
  for (RowTracked* each : arrays) {
    auto* known = dynamic_cast<table::RowTrackedImpl*>(each);
    if (known == nullptr) {
      return InvalidArgumentError("only arrays made by RowTracked::Make can be cut");
    }
    members.push_back(std::make_unique<table::RowTrackedCut>(known, request));
  }
  for (const auto& member : members) {
    if (member->gate() == members[0]->gate()) continue;
    return InvalidArgumentError("\"" + members[0]->name() + "\" and \"" + member->name() +
                                "\" pass through different gates: they cannot be cut together");
  }
  return members;
}

}  // namespace

Result<std::vector<std::unique_ptr<TableCut>>> CutTablesAndArrays(
    std::span<Table* const> tables, std::span<RowTracked* const> arrays, const CutRequest& request,
    const std::function<Status()>& also) {
  ASSIGN_OR_RETURN(Members members, MakeMembers(tables, arrays, request));
  const auto cancel = [&](std::size_t opened) {
    for (std::size_t i = 0; i < opened; ++i) members[i]->Cancel();
  };
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (const Status opened = members[i]->Open(); !opened.ok()) {
      cancel(i);
      return opened;
    }
  }
  CutGate* gate = members.empty() ? CutGate::Process().get() : members[0]->gate();
  const Status cut = gate->Exclusive([&] {
    // What may fail comes first: then nothing was cut.
    if (also) RETURN_IF_ERROR(also());
    for (const auto& member : members) member->Flip();
    return Status::Ok();
  });
  if (!cut.ok()) {
    cancel(members.size());
    return cut;
  }
  std::vector<std::unique_ptr<TableCut>> out;
  for (auto& member : members) {
    RETURN_IF_ERROR(member->Prepare());  // the others fail as they go
    out.push_back(std::move(member));
  }
  return out;
}

Result<std::vector<std::unique_ptr<TableCut>>> CutTables(std::span<Table* const> tables,
                                                         const CutRequest& request,
                                                         const std::function<Status()>& also) {
  return CutTablesAndArrays(tables, {}, request, also);
}

}  // namespace cairn
