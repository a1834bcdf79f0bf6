#include <memory>

#include "tune/scheduler.h"

namespace cairn::tune {
namespace {

class FifoScheduler : public Scheduler {
 public:
  Status OnTrialAdd(const std::string&, const Value&) override { return Status::Ok(); }
  Result<Decision> OnResult(const std::string&, const Value&) override { return Decision{}; }
  Status OnComplete(const std::string&, const Value&) override { return Status::Ok(); }
  Status OnError(const std::string&) override { return Status::Ok(); }

  Result<Choice> ChooseTrialToRun(const Candidates& candidates) override {
    if (!candidates.pending.empty())
      return Choice{Choice::Kind::kRun, candidates.pending.front(), {}, {}};
    if (!candidates.paused.empty())
      return Choice{Choice::Kind::kRun, candidates.paused.front(), {}, {}};
    return Choice{};
  }

  Value Save() const override { return Value::Object{}; }
  Status Load(const Value& state) override {
    return state.is_object() ? Status::Ok()
                             : CorruptionError("state of a scheduler: not an object");
  }
};

}  // namespace

Value Scheduler::CompleteConfig(const std::string&, const Value& config) const { return config; }

Status Scheduler::SetConfig(const std::string&, const Value&) { return Status::Ok(); }

std::unique_ptr<Scheduler> MakeFifoScheduler() { return std::make_unique<FifoScheduler>(); }

}  // namespace cairn::tune
