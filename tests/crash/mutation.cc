#include "tests/crash/mutation.h"

#include <set>
#include <string_view>
#include <tuple>
#include <utility>

namespace cairn::crash {
namespace {

using Kind = StoreOp::Kind;
using Matcher = std::function<bool(const StoreOp&)>;

bool IsManifest(std::string_view name) { return name.ends_with("/manifest.json"); }
bool IsSeal(std::string_view name) { return name.ends_with(".seal.json"); }
bool IsNote(std::string_view name) { return name.find("/notes/") != name.npos; }
bool IsRemoveNote(std::string_view name) { return IsNote(name) && CurrentStep() == "remove: note"; }
bool IsMarker(std::string_view name) { return name.ends_with("/.cairn-attempt"); }
bool IsIndex(std::string_view name) { return name.ends_with(".index.json"); }
bool IsFence(std::string_view name) {
  constexpr std::string_view kPrefix = "generations/";
  if (!name.starts_with(kPrefix)) return false;
  name.remove_prefix(kPrefix.size());
  return name.find_first_not_of("0123456789") == name.find(".json");
}
bool IsData(std::string_view name) {
  return name.find("/__model__/") != name.npos || name.find("/rank_") != name.npos;
}

Matcher Op(Kind kind, bool (*is)(std::string_view)) {
  return [=](const StoreOp& op) { return op.kind == kind && is(op.name); };
}
Matcher Sync(std::string why) {
  return [=](const StoreOp& op) { return op.kind == Kind::kSyncNames && op.why == why; };
}
bool MakesFilesDurable(const StoreOp& op) {
  return op.kind == Kind::kCloseObject || op.kind == Kind::kDrain;
}
bool TakesAFileAway(const StoreOp& op) {
  return (op.kind == Kind::kDelete && IsData(op.name)) || op.kind == Kind::kMoveToPool;
}

OrderMutation Order(std::string name, std::string likely, Matcher first, Matcher then) {
  Mutation mutation{.name = std::move(name)};
  mutation.order = BrokenOrder{.first = std::move(first), .then = std::move(then)};
  return {std::move(mutation), std::move(likely)};
}

OrderMutation BeforeStep(std::string name, std::string likely, Matcher first, std::string step) {
  Mutation mutation{.name = std::move(name)};
  mutation.order = BrokenOrder{.first = std::move(first), .then_step = std::move(step)};
  return {std::move(mutation), std::move(likely)};
}

/// `steps`: those in which the sync is made late; none: wherever it comes.
OrderMutation Late(std::string name, std::string likely, std::string why,
                   std::set<std::string> steps, std::string operation, std::string late_step) {
  Mutation mutation{.name = std::move(name)};
  mutation.ignore = [why = std::move(why), steps = std::move(steps)](const SyncPoint& point) {
    return point.sync.why == why && (steps.empty() || steps.contains(point.step));
  };
  mutation.late_operation = std::move(operation);
  mutation.late_step = std::move(late_step);
  return {std::move(mutation), std::move(likely)};
}

}  // namespace

Mutation WithoutSync(const SyncPoint& point) {
  Mutation mutation{.name = DescribeSync(point)};
  mutation.ignore = [point](const SyncPoint& other) { return other == point; };
  return mutation;
}

// There is no mutation "manifest before the parts": the manifest is made of what the parts say.
std::vector<OrderMutation> OrderMutations(Machine::Kind kind) {
  const std::string alone = "three saves";
  const std::string ranks = "three ranks";
  const std::string removal = "retention and recycling";
  std::vector<OrderMutation> all = {
      Order("the manifest before its files", alone, MakesFilesDurable,
            Op(Kind::kCreate, IsManifest)),
      BeforeStep("the part before its files", ranks, MakesFilesDurable, "acknowledge"),
      Order("the manifest before the index", ranks, Op(Kind::kPut, IsIndex),
            Op(Kind::kCreate, IsManifest)),
      BeforeStep("the acknowledgement before the manifest", alone, Op(Kind::kCreate, IsManifest),
                 "acknowledge"),
      BeforeStep("the acknowledgement before the seal", alone, Op(Kind::kCreate, IsSeal),
                 "acknowledge"),
      Order("the seal before the fence", alone, Op(Kind::kCreate, IsFence),
            Op(Kind::kCreate, IsSeal)),
      Order("a removal's files before its manifest", removal, Op(Kind::kDelete, IsManifest),
            TakesAFileAway),
      Order("a removal's manifest before its note", removal, Op(Kind::kCreate, IsRemoveNote),
            Op(Kind::kDelete, IsManifest)),
      Order("a removal's marks before its files", removal, Op(Kind::kDelete, IsData),
            Op(Kind::kDelete, IsMarker)),
  };
  if (IsBucket(kind)) {
    all.push_back(Order("the files before the claim of the directory", alone,
                        Op(Kind::kCreate, IsMarker),
                        [](const StoreOp& op) { return op.kind == Kind::kDrain; }));
    return all;
  }
  all.push_back(Order("the manifest before the names of its files", alone, Sync("checkpoint names"),
                      Op(Kind::kCreate, IsManifest)));
  all.push_back(Order("a removal's notes gone before its manifest durably is", removal,
                      Sync("removed manifest"), Op(Kind::kDelete, IsNote)));
  // Asked for are all syncs by then; nobody has waited for the last of them.
  all.push_back(Order(
      "the manifest before the last syncs have ended", alone,
      [](const StoreOp& op) { return op.kind == Kind::kDrain; }, Op(Kind::kCreate, IsManifest)));
  // Alone the bytes are synced beside the files, with several ranks when all parts are there.
  for (const auto& [who, likely, step] : {std::tuple("one writer", alone, "save: sync data"),
                                          std::tuple("several ranks", ranks, "save: manifest")}) {
    all.push_back(Late("the manifest's name before its bytes (" + std::string(who) + ")", likely,
                       "record bytes", {step}, "link ", ""));
  }
  all.push_back(Late("the index's name before its bytes", ranks, "put bytes", {}, "rename ", ""));
  all.push_back(Late("the acknowledgement before the manifest's name is durable", alone,
                     "record name", {"save: manifest"}, "", "acknowledge"));
  all.push_back(Late("another rank's acknowledgement before the manifest's name is durable", ranks,
                     "seen manifest", {}, "", "acknowledge"));
  return all;
}

}  // namespace cairn::crash
