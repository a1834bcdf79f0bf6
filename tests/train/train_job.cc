// A training with a Trainer, as a process that a test kills:
//   train_job DIR BOARD LOSSES RESULT EPOCHS SEEK KILL_STEP KILL_COUNT KILL_DELAY_US
//             TRAINER_ID NUM_TRAINERS PEER_FD STEP_US
// When the protocol step KILL_STEP has begun for the KILL_COUNT-th time, the process sends SIGKILL
// to itself KILL_DELAY_US later. "*": so long after the process began; "-": never. SEEK 0: the
// reader cannot seek. PEER_FD: a socket to the other one of two trainers, over which gradients are
// exchanged. Every step takes STEP_US more. Its loss is appended to LOSSES; at the end the state
// goes into RESULT. Exit codes: 0 the training is complete, 3 an error, 4 ended by SIGTERM and
// saved.

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "checkpoint/manager.h"
#include "tests/kill/strike.h"
#include "tests/train/job_model.h"
#include "train/trainer.h"

namespace cairn::train_job {
namespace {

struct Arguments {
  std::string directory, board, losses, result;
  std::int64_t epochs = 0;
  bool seek = false;
  std::string kill_step;
  long kill_count = 0;
  long kill_delay_us = 0;
  int trainer_id = 0;
  int num_trainers = 1;
  int peer_fd = -1;
  long step_us = 0;
};

int Fail(const Status& status) {
  std::fprintf(stderr, "train_job: %s\n", status.ToString().c_str());
  return 3;
}

void KillSelfAfter(long delay_us) {
  if (delay_us > 0) usleep(static_cast<useconds_t>(delay_us));
  ::kill(getpid(), SIGKILL);
  for (;;) pause();
}

/// A ShuffledIndices that may hide that it can seek.
class JobReader final : public Reader<std::vector<std::uint64_t>> {
 public:
  JobReader(ShuffledIndicesOptions options, bool seek) : inner_(options), seek_(seek) {}
  Status Begin(std::int64_t epoch) override { return inner_.Begin(epoch); }
  Result<std::optional<std::vector<std::uint64_t>>> Next() override { return inner_.Next(); }
  bool seekable() const override { return seek_; }
  Result<Value> SaveState() override { return inner_.SaveState(); }
  Status LoadState(const Value& state) override { return inner_.LoadState(state); }

 private:
  ShuffledIndices inner_;
  const bool seek_;
};

/// Adds up the gradients of both trainers, trainer 0's first.
Status ExchangeGradients(const Arguments& arguments, std::vector<float>* own) {
  if (arguments.num_trainers == 1) return Status::Ok();
  std::vector<float> other(own->size());
  const std::size_t bytes = own->size() * sizeof(float);
  const char* out = reinterpret_cast<const char*>(own->data());
  char* in = reinterpret_cast<char*>(other.data());
  // In turns and in small pieces: neither may wait for room while the other does.
  constexpr std::size_t kPiece = 4096;
  for (std::size_t at = 0; at < bytes; at += kPiece) {
    const std::size_t piece = std::min(kPiece, bytes - at);
    for (std::size_t sent = 0; sent < piece;) {
      const ssize_t n = send(arguments.peer_fd, out + at + sent, piece - sent, MSG_NOSIGNAL);
      if (n <= 0) return UnavailableError("the other trainer is gone");
      sent += static_cast<std::size_t>(n);
    }
    for (std::size_t received = 0; received < piece;) {
      const ssize_t n = recv(arguments.peer_fd, in + at + received, piece - received, 0);
      if (n <= 0) return UnavailableError("the other trainer is gone");
      received += static_cast<std::size_t>(n);
    }
  }
  const std::vector<float>& first = arguments.trainer_id == 0 ? *own : other;
  const std::vector<float>& second = arguments.trainer_id == 0 ? other : *own;
  for (std::size_t i = 0; i < other.size(); ++i) (*own)[i] = first[i] + second[i];
  return Status::Ok();
}

Result<Environment> MakeEnvironment(const Arguments& arguments, kill::Blackboard* board,
                                    std::atomic<long>* kill_count) {
  auto env = EnvironmentAt(arguments.directory, {.create = true});
  if (!env.ok()) return env;
  env->on_step = [&arguments, board, kill_count](std::string_view name) {
    board->SetStep(name);
    if (name != arguments.kill_step || kill_count->fetch_sub(1) != 1) return;
    if (arguments.kill_delay_us == 0) KillSelfAfter(0);
    std::thread(KillSelfAfter, arguments.kill_delay_us).detach();
  };
  return env;
}

int Run(const Arguments& arguments, kill::Blackboard* board) {
  std::atomic<long> kill_count = arguments.kill_count;
  if (arguments.kill_step == "*") std::thread(KillSelfAfter, arguments.kill_delay_us).detach();
  kill::BereftClock clock(board);
  auto env = MakeEnvironment(arguments, board, &kill_count);
  if (!env.ok()) return Fail(env.status());
  env->clock = &clock;

  const auto id = static_cast<std::uint64_t>(arguments.trainer_id);
  Model model(id);
  TrainerOptions options;
  options.model = model.Variables();
  options.checkpoint_config = {{.checkpoint_dir = arguments.directory,
                                .max_num_checkpoints = 2,
                                .step_interval = 3,
                                .deadline = std::chrono::minutes(5),
                                .join_deadline = std::chrono::minutes(5)}};
  options.trainer_id = arguments.trainer_id;
  options.num_trainers = arguments.num_trainers;
  auto opened = OpenTrainer(options, *env);
  if (!opened.ok()) return Fail(opened.status());
  Trainer* trainer = opened->get();
  if (const Status status = model.Register(trainer); !status.ok()) return Fail(status);
  board->resumed = trainer->global_step();

  JobReader reader({.size = 80,
                    .batch_size = 4,
                    .seed = 11,
                    .trainer_id = arguments.trainer_id,
                    .num_trainers = arguments.num_trainers},
                   arguments.seek);
  const int losses = open(arguments.losses.c_str(), O_WRONLY | O_APPEND | O_CREAT, 0600);
  auto result = trainer->Train(
      arguments.epochs, reader,
      [&](const std::vector<std::uint64_t>& batch) {
        if (arguments.step_us > 0) usleep(static_cast<useconds_t>(arguments.step_us));
        return model.Step(
            batch, [&](std::vector<float>* own) { return ExchangeGradients(arguments, own); });
      },
      [&](const TrainerEvent& event) {
        const auto* end = std::get_if<EndStepEvent>(&event);
        if (end == nullptr) return;
        const LossRecord record{trainer->global_step() - 1, end->metrics.Find("loss")->AsDouble()};
        if (write(losses, &record, sizeof record) != sizeof record) std::abort();
      });
  if (!result.ok()) return Fail(result.status());
  if (const Status closed = trainer->Close(); !closed.ok()) return Fail(closed);
  if (result->outcome == TrainOutcome::kTerminated) return 4;
  std::ofstream(arguments.result, std::ios::binary) << model.Bytes();
  return 0;
}

}  // namespace
}  // namespace cairn::train_job

int main(int argc, char** argv) {
  if (argc != 14) return 2;
  cairn::train_job::Arguments arguments;
  arguments.directory = argv[1];
  arguments.board = argv[2];
  arguments.losses = argv[3];
  arguments.result = argv[4];
  arguments.epochs = std::atol(argv[5]);
  arguments.seek = std::atoi(argv[6]) != 0;
  arguments.kill_step = argv[7];
  arguments.kill_count = std::atol(argv[8]);
  arguments.kill_delay_us = std::atol(argv[9]);
  arguments.trainer_id = std::atoi(argv[10]);
  arguments.num_trainers = std::atoi(argv[11]);
  arguments.peer_fd = std::atoi(argv[12]);
  arguments.step_us = std::atol(argv[13]);
  const int fd = open(arguments.board.c_str(), O_RDWR);
  auto* board = static_cast<cairn::kill::Blackboard*>(
      mmap(nullptr, sizeof(cairn::kill::Blackboard), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
  if (fd < 0 || board == MAP_FAILED) return 2;
  return cairn::train_job::Run(arguments, board);
}
