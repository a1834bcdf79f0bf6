#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <functional>
#include <limits>
#include <optional>
#include <utility>

#include <cairn/ps.h>

#include "base/clock.h"
#include "base/ids.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/thread_annotations.h"
#include "base/variables.h"
#include "format/json.h"
#include "paramserver/declaration.h"
#include "paramserver/links.h"
#include "paramserver/payload.h"
#include "paramserver/persistables.h"
#include "paramserver/placement.h"
#include "paramserver/remote_dense.h"
#include "paramserver/remote_table.h"

namespace cairn::ps {
namespace {

/// So many parts of a question a server has at a time: one that it works on, and the next.
constexpr std::size_t kPartsUnderWay = 2;

/// Not for a limit, a token, bytes that nobody understands: it would be the same again.
bool Retried(const Status& status) {
  return !status.Is(Code::kResourceExhausted) && !status.Is(Code::kPermissionDenied) &&
         !status.Is(Code::kCorruption) && !status.Is(Code::kUnimplemented);
}

class ClientImpl final : public Client, public Exchanger {
 public:
  explicit ClientImpl(ClientOptions options)
      : options_(std::move(options)), owned_links_(std::make_unique<Links>(&options_)) {}
  ~ClientImpl() override {
    // In a fork they are never freed: their thread is not here, and the connections are the
    // parent's.
    if (!links_.CheckProcess().ok()) (void)owned_links_.release();  // NOLINT: on purpose
  }

  Status Open() {
    RETURN_IF_ERROR(links_.Open());
    RETURN_IF_ERROR(links_.Meet());
    TakePosition();
    return CompleteStep();
  }

  int servers() const override { return links_.servers(); }
  int trainer() const override { return options_.trainer; }
  int trainers() const override { return options_.trainers; }
  Mode mode() const override { return links_.position().sync ? Mode::kSync : Mode::kAsync; }
  std::int64_t step() const override { return step_; }
  const std::optional<std::string>& state() const override { return state_; }
  std::uint64_t rollbacks() const override { return rollbacks_; }
  std::uint64_t generation() const override { return links_.generation(); }

  Result<RemoteTable*> Table(TableSpec spec) override;
  Result<RemoteDense*> Dense(DenseSpec spec, std::span<const float> initial) override;
  Status EndStep(std::string state) override;
  Status SetState(std::string state) override;
  Status Barrier() override;
  Status RequestSave(bool full) override;
  Result<std::string> SavePersistables(const std::string& directory) override;
  Status Close() override;
  void Cancel() override { links_.Cancel(); }
  Result<TableCut::Error> QuantizationError() override;
  Result<std::string> StatusOf(int server) override { return TextOf(server, Kind::kStatus); }
  Result<std::string> MetricsOf(int server) override { return TextOf(server, Kind::kMetrics); }

 private:
  Status ExchangeParts(const RequestHead& head, bool change, std::uint32_t parts,
                       const BuildPart& build, const TakePart& take,
                       std::chrono::milliseconds timeout) override;
  /// What servers are asked for in one go: item i is part i / servers for server i % servers.
  struct Questions {
    const RequestHead& head;
    const bool change;
    const std::uint32_t parts;
    const BuildPart& build;
    const TakePart& take;
    std::vector<bool> answered;            // by item, or not to be asked
    std::vector<std::uint64_t> sequences;  // of changes, by server; 0: none yet
  };
  /// `*broken`: a connection was lost, or a server left the generation; meet again.
  Status TryExchange(Questions* questions, std::chrono::milliseconds timeout, bool* broken);
  /// The first part for each server. Either all may be sent or none.
  Status BuildFirst(Questions* questions, std::vector<std::optional<rpc::Message>>* messages);
  RequestHead HeadFor(const Questions& questions, int server);
  /// The answer to an item that was sent. An error: the connection is of no more use; `*refused`:
  /// what the server, or who takes the answer, has against it.
  Status TakeAnswer(Questions* questions, std::size_t item, Status* refused);
  Status Recover();
  void TakePosition();
  /// An earlier process of this trainer may have been lost while it ended its last step, or carried
  /// a marker: to some servers and not to all. Before anything else all are told.
  Status CompleteStep();
  /// Without a state the servers keep what they have.
  Status SendEndStep(std::int64_t step, std::optional<std::string> state, EndStepReply* lead);
  Status DeclareAll();
  Status DeclareNew(const std::function<Status()>& declare);
  Result<std::string> TextOf(int server, Kind kind);
  Status NotMine() const {
    return FailedPreconditionError("this client only looks: it was made with trainer = -1");
  }

  const ClientOptions options_;
  std::unique_ptr<Links> owned_links_;
  Links& links_ = *owned_links_;
  std::int64_t step_ = 0;
  std::optional<std::string> state_;
  Marker next_;
  std::uint64_t barrier_ = 0;  // passed
  std::uint64_t rollbacks_ = 0;
  bool started_ = false;  // something was pulled, pushed or ended since the last position
  bool trained_ = false;  // the same, ever
  bool pushed_ = false;   // since the last step ended
  bool closed_ = false;
  std::vector<std::unique_ptr<RemoteTableImpl>> tables_;
  std::vector<std::unique_ptr<RemoteDenseImpl>> dense_;
};

void ClientImpl::TakePosition() {
  const HelloReply& position = links_.position();
  step_ = position.step;
  state_ = position.state;
  next_ = position.next;
  barrier_ = position.barrier;
  started_ = false;
  pushed_ = false;
  links_.set_progress(step_, barrier_);
}

Status ClientImpl::CompleteStep() {
  if (options_.trainer < 0) return Status::Ok();
  const bool exact_sync = mode() == Mode::kSync && links_.position().recovery == Recovery::kExact;
  EndStepReply lead;
  Status ended = AbortedError("not asked yet");
  while (ended.Is(Code::kAborted)) {  // the job went back: from the position that Recover took
    if (exact_sync && !links_.uneven()) return Status::Ok();
    if (step_ == 0 && next_.number == 0) return Status::Ok();
    ended = SendEndStep(step_ - 1, state_, &lead);
  }
  RETURN_IF_ERROR(ended);
  next_ = lead.next;
  started_ = trained_ = false;
  return Status::Ok();
}

Status ClientImpl::DeclareAll() {
  for (const auto& table : tables_) RETURN_IF_ERROR(table->Declare());
  for (const auto& dense : dense_) RETURN_IF_ERROR(dense->Declare());
  return Status::Ok();
}

Status ClientImpl::Recover() {
  const std::uint64_t before = links_.generation();
  RETURN_IF_ERROR(links_.Meet());
  if (links_.generation() == before) return Status::Ok();
  const bool back = links_.went_back();
  if (back) {
    TakePosition();
    ++rollbacks_;
  }
  // The servers may be lost again meanwhile; then this was not the last time.
  const Status declared = DeclareAll();
  if (!declared.ok() && !declared.Is(Code::kAborted)) return declared;
  if (!back) return Status::Ok();  // what was not answered is asked again
  return AbortedError(fmt::format("the job went back to step {}", step_));
}

RequestHead ClientImpl::HeadFor(const Questions& questions, int server) {
  RequestHead head = questions.head;
  head.generation = links_.generation();
  if (questions.change) {
    head.sequence = questions.sequences[static_cast<std::size_t>(server)];
  } else if (head.kind == Kind::kEndStep) {
    head.sequence = links_.sequence(server);
  }
  return head;
}

Status ClientImpl::BuildFirst(Questions* questions,
                              std::vector<std::optional<rpc::Message>>* messages) {
  for (int i = 0; i < links_.servers(); ++i) {
    const auto at = static_cast<std::size_t>(i);
    if (questions->answered[at]) continue;
    std::uint64_t& sequence = questions->sequences[at];
    if (questions->change && sequence == 0) sequence = links_.NextSequence(i);
    (*messages)[at] = questions->build(i, 0, HeadFor(*questions, i));
    if (!(*messages)[at]) {
      questions->answered[at] = true;
      if (questions->change) links_.ReturnSequence(i);
      sequence = 0;
      continue;
    }
    const std::size_t size = (*messages)[at]->size();
    if (size <= links_.max_message_bytes()) continue;
    for (int k = 0; k <= i && questions->change; ++k) {
      if (questions->sequences[static_cast<std::size_t>(k)] != 0) links_.ReturnSequence(k);
    }
    return ResourceExhaustedError(
        fmt::format("{} bytes for server {} are more than a message may have ({}): use smaller "
                    "batches",
                    size, i, links_.max_message_bytes()));
  }
  return Status::Ok();
}

Status ClientImpl::TakeAnswer(Questions* questions, std::size_t item, Status* refused) {
  const auto servers = static_cast<std::size_t>(links_.servers());
  const int server = static_cast<int>(item % servers);
  ASSIGN_OR_RETURN(const rpc::Received received, links_.Receive(server));
  const auto reply = DecodeReply(received.bytes());
  if (!reply.ok()) return UnavailableError(std::string(reply.status().message()));
  const Status status = ReplyStatus(*reply);
  // It left the generation; whoever greets it again learns more.
  if (status.Is(Code::kAborted) || status.Is(Code::kUnavailable)) return UnavailableError("left");
  questions->answered[item] = true;
  if (questions->change) links_.Acknowledged(server, questions->sequences[item % servers]);
  const Status taken =
      status.ok() ? questions->take(server, static_cast<std::uint32_t>(item / servers), reply->body)
                  : status;
  if (refused->ok() && !taken.ok()) {
    *refused = taken.WithContext("server " + std::to_string(server));
  }
  return Status::Ok();
}

Status ClientImpl::TryExchange(Questions* questions, std::chrono::milliseconds timeout,
                               bool* broken) {
  const Links::Timer timer(&links_, timeout);
  const auto servers = static_cast<std::size_t>(links_.servers());
  const std::size_t items = questions->answered.size();
  std::vector<std::optional<rpc::Message>> first(servers);
  std::vector<bool> asked(items, false);
  *broken = false;
  RETURN_IF_ERROR(BuildFirst(questions, &first));
  *broken = true;
  const auto lost = [&](const Status& why) {
    if (Retried(why)) return Status::Ok();
    *broken = false;
    links_.ForgetSequences();
    links_.Drop();
    return why;
  };
  Status refused;
  std::size_t next = 0;
  for (std::size_t item = 0; item < items; ++item) {
    for (; next < items && next < item + kPartsUnderWay * servers; ++next) {
      if (questions->answered[next]) continue;
      const int server = static_cast<int>(next % servers);
      auto message = next < servers
                         ? std::move(first[next])
                         : questions->build(server, static_cast<std::uint32_t>(next / servers),
                                            HeadFor(*questions, server));
      if (!message) {
        questions->answered[next] = true;
        continue;
      }
      asked[next] = true;
      // Why it is closed shows when one listens.
      if (!links_.Send(server, *std::move(message)).ok()) {
        return lost(links_.Receive(server).status());
      }
    }
    if (!asked[item]) continue;
    if (const Status taken = TakeAnswer(questions, item, &refused); !taken.ok()) {
      return lost(taken);
    }
  }
  *broken = false;
  return refused;
}

Status ClientImpl::ExchangeParts(const RequestHead& head, bool change, std::uint32_t parts,
                                 const BuildPart& build, const TakePart& take,
                                 std::chrono::milliseconds timeout) {
  RETURN_IF_ERROR(links_.CheckProcess());
  if (closed_) return FailedPreconditionError("this client was closed: connect a new one");
  if (timeout.count() == 0) timeout = options_.request_timeout;
  if (change || head.kind == Kind::kPull || head.kind == Kind::kEndStep) {
    started_ = trained_ = true;
  }
  if (head.kind == Kind::kPush || head.kind == Kind::kDensePush) pushed_ = true;
  const auto servers = static_cast<std::size_t>(links_.servers());
  Questions questions{head,
                      change,
                      parts,
                      build,
                      take,
                      std::vector<bool>(servers * parts, false),
                      std::vector<std::uint64_t>(servers, 0)};
  // Attempts are bounded by Meet, which gives up; here only against servers that greet and then
  // close each connection.
  for (int attempt = 0; attempt < 1000; ++attempt) {
    bool broken = false;
    const Status done = TryExchange(&questions, timeout, &broken);
    if (!broken) return done;
    if (links_.cancelled()) return CancelledError("the wait for the servers was cancelled");
    links_.Drop();
    RETURN_IF_ERROR(Recover());
    // Greeting a server again takes back that one left it.
    if (head.kind == Kind::kLeave) questions.answered.assign(servers, false);
  }
  return UnavailableError("the servers take connections and do not answer");
}

Result<std::string> ClientImpl::TextOf(int server, Kind kind) {
  if (server < 0 || server >= servers()) {
    return InvalidArgumentError("there is no server " + std::to_string(server));
  }
  std::string text;
  RETURN_IF_ERROR(Exchange(
      {.kind = kind}, false,
      [&](int i, const RequestHead& head) {
        return i == server ? std::optional(NewRequest(head, "")) : std::nullopt;
      },
      [&](int, std::span<const std::byte> body) {
        text = AsText(body);
        return Status::Ok();
      }));
  return text;
}

Result<TableCut::Error> ClientImpl::QuantizationError() {
  TableCut::Error greatest;
  for (int i = 0; i < servers(); ++i) {
    ASSIGN_OR_RETURN(const std::string text, StatusOf(i));
    ASSIGN_OR_RETURN(const Value status, DecodeJson(text));
    const Value* const error = status.Find("quantization_error");
    if (error == nullptr) continue;
    const auto take = [&](const char* name, double* into) {
      const Value* const here = error->Find(name);
      if (here == nullptr) return;
      // What is not finite is told as a word.
      constexpr double kInfinity = std::numeric_limits<double>::infinity();
      *into = std::max(*into, here->is_number() ? here->AsDouble() : kInfinity);
    };
    take("max_abs", &greatest.max_abs);
    take("max_relative", &greatest.max_relative);
  }
  return greatest;
}

Result<RemoteTable*> ClientImpl::Table(TableSpec spec) {
  RETURN_IF_ERROR(MakeTableOptions(spec).status());
  for (const auto& table : tables_) {
    if (table->spec() == spec) return table.get();
  }
  tables_.push_back(std::make_unique<RemoteTableImpl>(this, std::move(spec)));
  const Status declared = DeclareNew([&] { return tables_.back()->Declare(); });
  if (!declared.ok()) {
    if (!declared.Is(Code::kAborted)) tables_.pop_back();
    return declared;
  }
  return tables_.back().get();
}

Status ClientImpl::DeclareNew(const std::function<Status()>& declare) {
  // A model that is still being built has no step that could have been undone. Of one that was
  // trained with that is so where nothing was done since it last went back, to the same place.
  const bool building = !started_;
  const std::int64_t step = step_;
  const std::optional<std::string> state = state_;
  Status declared = declare();
  while (declared.Is(Code::kAborted) && building &&
         (!trained_ || (step_ == step && state_ == state))) {
    declared = declare();
  }
  return declared;
}

Result<RemoteDense*> ClientImpl::Dense(DenseSpec spec, std::span<const float> initial) {
  ASSIGN_OR_RETURN(const DenseShape shape, RowsOf(spec.shape));
  RETURN_IF_ERROR(MakeOptimizer(spec.optimizer).status());
  if (initial.size() != shape.elements()) {
    return InvalidArgumentError(fmt::format("dense variable \"{}\" has {} elements, {} were given",
                                            spec.name, shape.elements(), initial.size()));
  }
  for (const auto& dense : dense_) {
    if (dense->spec() == spec) return dense.get();
  }
  dense_.push_back(std::make_unique<RemoteDenseImpl>(this, std::move(spec), shape, initial));
  const Status declared = DeclareNew([&] { return dense_.back()->Declare(); });
  if (!declared.ok()) {
    if (!declared.Is(Code::kAborted)) dense_.pop_back();
    return declared;
  }
  return dense_.back().get();
}

Status ClientImpl::SendEndStep(std::int64_t step, std::optional<std::string> state,
                               EndStepReply* lead) {
  const std::string request = Encode(EndStepRequest{.step = step,
                                                    .cut = next_,
                                                    .has_state = state.has_value(),
                                                    .state = std::move(state).value_or("")});
  // It waits for the other trainers, who may be being restarted.
  return Exchange(
      {.kind = Kind::kEndStep}, false,
      // With the state to all: whichever server saw the step end can tell it.
      [&](int, const RequestHead& head) { return std::optional(NewRequest(head, request)); },
      [&](int i, std::span<const std::byte> body) -> Status {
        ASSIGN_OR_RETURN(const EndStepReply reply, DecodeEndStepReply(body));
        if (i == 0) *lead = reply;
        return Status::Ok();
      },
      options_.reconnect_timeout);
}

Status ClientImpl::EndStep(std::string state) {
  if (options_.trainer < 0) return NotMine();
  const std::int64_t step = step_;
  EndStepReply lead;
  RETURN_IF_ERROR(SendEndStep(step, state, &lead));
  step_ = step + 1;
  next_ = lead.next;
  state_ = std::move(state);
  pushed_ = false;
  links_.set_progress(step_, barrier_);
  return Status::Ok();
}

Status ClientImpl::SetState(std::string state) {
  if (options_.trainer < 0) return NotMine();
  if (step_ == 0) return FailedPreconditionError("a state goes with a step, and none has ended");
  EndStepReply lead;
  RETURN_IF_ERROR(SendEndStep(step_ - 1, state, &lead));  // once more, with this one
  next_ = lead.next;
  state_ = std::move(state);
  return Status::Ok();
}

Status ClientImpl::Barrier() {
  if (options_.trainer < 0) return NotMine();
  if (pushed_ && mode() == Mode::kAsync) {
    // A checkpoint may be cut while all wait here: what was pushed would be in it, and be pushed
    // again by whoever goes on from there.
    return FailedPreconditionError("a barrier in the middle of a step: end the step first");
  }
  const std::uint64_t number = barrier_ + 1;
  RETURN_IF_ERROR(Exchange(
      {.kind = Kind::kBarrier}, false,
      // At all servers: each has to know that nothing of this trainer is on its way.
      [&](int, const RequestHead& head) {
        return std::optional(NewRequest(head, EncodeNumber(number)));
      },
      [](int, std::span<const std::byte>) { return Status::Ok(); }, options_.reconnect_timeout));
  barrier_ = number;
  links_.set_progress(step_, barrier_);
  return Status::Ok();
}

Status ClientImpl::RequestSave(bool full) {
  const std::uint16_t flags = full ? kFullSave : 0;
  return Exchange(
      {.kind = Kind::kSave, .flags = flags}, false,
      [&](int i, const RequestHead& head) {
        return i == 0 ? std::optional(NewRequest(head, "")) : std::nullopt;
      },
      [](int, std::span<const std::byte>) { return Status::Ok(); });
}

Result<std::string> ClientImpl::SavePersistables(const std::string& directory) {
  std::vector<PulledTable> tables;
  for (const auto& table : tables_) {
    ASSIGN_OR_RETURN(TableContent content, table->Content());
    tables.push_back({table->spec(), std::move(content)});
  }
  std::vector<PulledDense> dense;
  for (const auto& variable : dense_) {
    PulledDense pulled{.spec = variable->spec(), .values = {}, .slots = {}};
    ASSIGN_OR_RETURN(const auto optimizer, MakeOptimizer(pulled.spec.optimizer));
    std::size_t width = 0;
    for (const SlotSpec& slot :
         optimizer->Slots(static_cast<std::uint32_t>(variable->shape().width))) {
      width += slot.width;
    }
    RETURN_IF_ERROR(variable->Export(width, &pulled.values, &pulled.slots));
    dense.push_back(std::move(pulled));
  }
  return SavePulled(directory, step_, mode(), tables, dense);
}

Status ClientImpl::Close() {
  if (closed_) return Status::Ok();
  if (options_.trainer >= 0) {
    RETURN_IF_ERROR(Exchange(
        {.kind = Kind::kLeave}, false,
        [&](int, const RequestHead& head) { return std::optional(NewRequest(head, "")); },
        [](int, std::span<const std::byte>) { return Status::Ok(); }));
  }
  closed_ = true;
  links_.Drop();
  return Status::Ok();
}

}  // namespace

Result<Transport> TransportFromName(const std::string& name) {
  if (name == "socket") return Transport::kSocket;
  if (name == "grpc") return Transport::kGrpc;
  return InvalidArgumentError("CAIRN_PS_TRANSPORT: there is no transport \"" + name +
                              "\", only socket and grpc");
}

Result<ClientOptions> ClientOptions::FromEnvironment() {
  const Variables variable = ProcessVariables();
  ClientOptions options;
  const auto servers = variable("CAIRN_PS_SERVERS");
  if (!servers) {
    return InvalidArgumentError(
        "CAIRN_PS_SERVERS is not set: start the trainer with `cairn ps run`, or name the servers");
  }
  for (std::size_t at = 0; at <= servers->size();) {
    const std::size_t comma = std::min(servers->find(',', at), servers->size());
    if (comma > at) options.servers.push_back(servers->substr(at, comma - at));
    at = comma + 1;
  }
  const auto number = [&](const char* name, int* out) -> Status {
    const auto text = variable(name);
    if (!text) return Status::Ok();
    const char* const last = text->data() + text->size();
    const auto [read, error] = std::from_chars(text->data(), last, *out);
    if (error == std::errc() && read == last && !text->empty()) return Status::Ok();
    return InvalidArgumentError(fmt::format("{} must be a number, not \"{}\"", name, *text));
  };
  RETURN_IF_ERROR(number("CAIRN_TRAINER_ID", &options.trainer));
  RETURN_IF_ERROR(number("CAIRN_NUM_TRAINERS", &options.trainers));
  if (const auto directory = variable("CAIRN_CHECKPOINT_DIR")) options.directory = *directory;
  if (const auto token = variable("CAIRN_PS_TOKEN")) options.security.token = *token;
  if (const auto ca = variable("CAIRN_PS_CA")) options.security.ca = *ca;
  if (const auto transport = variable("CAIRN_PS_TRANSPORT")) {
    ASSIGN_OR_RETURN(options.transport, TransportFromName(*transport));
  }
  return options;
}

Result<std::unique_ptr<Client>> Client::Connect(ClientOptions options) {
  auto client = std::make_unique<ClientImpl>(std::move(options));
  RETURN_IF_ERROR(client->Open());
  return std::unique_ptr<Client>(std::move(client));
}

}  // namespace cairn::ps
