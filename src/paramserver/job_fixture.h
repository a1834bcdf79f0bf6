#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <cairn/ps.h>

#include "format/json.h"
#include "paramserver/payload.h"
#include "paramserver/placement.h"
#include "paramserver/test_job.h"
#include "rpc/client_stream.h"

/// For tests: whole jobs in one process, servers and trainers as in real life, over real
/// connections.
namespace cairn::ps {

using Learned = std::map<std::string, std::vector<float>>;

/// A trainer that does what it is told, also what a client would not do.
class RawTrainer {
 public:
  RawTrainer(int port, int trainer, int trainers, int server, int servers,
             const std::string& incarnation) {
    rpc::ConnectOptions to;
    to.address = "127.0.0.1:" + std::to_string(port);
    stream_ = rpc::ClientStream::Open(to).value();
    HelloRequest hello;
    hello.trainer = static_cast<std::uint32_t>(trainer);
    hello.trainers = static_cast<std::uint32_t>(trainers);
    hello.server = static_cast<std::uint32_t>(server);
    hello.servers = static_cast<std::uint32_t>(servers);
    hello.incarnation = incarnation;
    // The server may still be on its way.
    do {
      greeted_ = Ask({.kind = Kind::kHello}, Encode(hello));
    } while (greeted_.Is(Code::kUnavailable));
  }

  const Status& greeted() const { return greeted_; }
  /// The answer's status; its body is in body().
  Status Ask(RequestHead head, std::string_view body) {
    if (head.kind != Kind::kHello) head.generation = generation_;
    RETURN_IF_ERROR(stream_->Send(NewRequest(head, body)));
    ASSIGN_OR_RETURN(const rpc::Received received, stream_->Receive());
    ASSIGN_OR_RETURN(const Reply reply, DecodeReply(received.bytes()));
    if (head.kind == Kind::kHello) generation_ = reply.head.generation;
    body_ = AsText(reply.body);
    return ReplyStatus(reply);
  }
  std::span<const std::byte> body() const {
    return std::as_bytes(std::span(body_.data(), body_.size()));
  }
  /// The marker in the answer.
  Result<Marker> EndStep(std::int64_t step, const Marker& marker, std::uint64_t sequence = 0) {
    RETURN_IF_ERROR(Ask({.kind = Kind::kEndStep, .sequence = sequence},
                        Encode(EndStepRequest{step, marker, true, "state"})));
    ASSIGN_OR_RETURN(const EndStepReply reply, DecodeEndStepReply(body()));
    return reply.next;
  }

 private:
  std::unique_ptr<rpc::ClientStream> stream_;
  std::uint64_t generation_ = 0;
  std::string body_;
  Status greeted_;
};

/// Weights that count the pushes of each key: one more or one less shows, in any order.
class Counts {
 public:
  static constexpr int kKeys = 200;

  Status Declare(Client* client) {
    ASSIGN_OR_RETURN(table_, client->Table({.name = "counts",
                                            .dim = 2,
                                            .optimizer = {"sgd", {{"learning_rate", 1}}},
                                            .initializer = {"constant", 0, 0}}));
    for (std::int64_t i = 0; i < kKeys; ++i) ids_.push_back(i);
    return Status::Ok();
  }
  Status Push(int keys = kKeys) {
    const auto count = static_cast<std::size_t>(keys);
    return table_->ApplyGradients(std::span(ids_).first(count), std::vector<float>(count * 2, 1));
  }
  /// Of all keys, when it is the same for all; otherwise −1.
  std::int64_t Count() {
    return CountIf([](std::int64_t) { return true; });
  }
  /// The same of the keys that a server has.
  std::int64_t CountAt(int server, int servers) {
    return CountIf(
        [=](std::int64_t key) { return ServerOfShard(TableShardOf(key), servers) == server; });
  }

 private:
  std::int64_t CountIf(const std::function<bool(std::int64_t)>& counts) {
    std::vector<float> rows(ids_.size() * 2);
    if (!table_->Lookup(ids_, rows).ok()) return -2;
    std::set<float> weights;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (counts(ids_[i / 2])) weights.insert(rows[i]);
    }
    return weights.size() == 1 ? static_cast<std::int64_t>(-*weights.begin()) : -1;
  }

  RemoteTable* table_ = nullptr;
  std::vector<std::int64_t> ids_;
};

class JobTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    directory_ = testing::TempDir() + "cairn_ps_" + info->name() + "_" + std::to_string(getpid());
    std::filesystem::remove_all(directory_);
  }
  void TearDown() override {
    servers_.clear();
    std::filesystem::remove_all(directory_);
  }

  ServerOptions Options(int index, int servers) const {
    ServerOptions options;
    options.directory = directory_;
    options.index = index;
    options.servers = servers;
    options.trainers = trainers_;
    options.mode = mode_;
    options.full_secs.reset();
    options.full_steps = full_steps_;
    options.incremental_steps = incremental_steps_;
    options.quantize = quantize_;
    options.load = load_;
    options.recovery = recovery_;
    return options;
  }
  void StartServer(int index, int servers) {
    auto server = Server::Start(Options(index, servers));
    ASSERT_TRUE(server.ok()) << server.status().ToString();
    if (servers_.size() <= static_cast<std::size_t>(index)) {
      servers_.resize(static_cast<std::size_t>(index) + 1);
    }
    servers_[static_cast<std::size_t>(index)] = std::move(server).value();
  }
  void StartServers(int servers) {
    for (int i = 0; i < servers; ++i) StartServer(i, servers);
  }
  /// As a kill does: nothing more is saved.
  void Lose(int index) { servers_[static_cast<std::size_t>(index)].reset(); }

  Result<std::unique_ptr<Client>> Connect(int trainer) const {
    ClientOptions options;
    options.directory = directory_;
    options.num_servers = static_cast<int>(servers_.size());
    options.trainer = trainer;
    options.trainers = trainers_;
    options.reconnect_timeout = std::chrono::seconds(30);
    return Client::Connect(options);
  }
  /// Between one trainer and one server, message by message.
  RawTrainer Raw(int trainer, int server, const std::string& incarnation) const {
    return {servers_[static_cast<std::size_t>(server)]->port(),
            trainer,
            trainers_,
            server,
            static_cast<int>(servers_.size()),
            incarnation};
  }
  /// All trainers, to that many steps; what was learned then.
  Learned Train(std::int64_t steps, const std::function<void(std::int64_t)>& before = {}) {
    Learned learned;
    {
      std::vector<std::jthread> threads;
      for (int i = 0; i < trainers_; ++i) {
        threads.emplace_back([&, i] {
          auto client = Connect(i);
          ASSERT_TRUE(client.ok()) << client.status().ToString();
          TestModel model;
          ASSERT_TRUE(model.Declare(client->get()).ok());
          const Status trained = model.TrainTo(steps, [&](std::int64_t step) {
            if (paced_) AwaitSaves();
            if (i == 0 && before) before(step);
          });
          ASSERT_TRUE(trained.ok()) << trained.ToString();
          rollbacks_ += (*client)->rollbacks();
          if (i == 0) {
            auto all = model.Learned();
            ASSERT_TRUE(all.ok()) << all.status().ToString();
            learned = *std::move(all);
          }
          ASSERT_TRUE((*client)->Barrier().ok());
          ASSERT_TRUE((*client)->Close().ok());
        });
      }
    }
    return learned;
  }
  /// Until nothing is being saved any more.
  void AwaitSaves() {
    for (int i = 0; i < static_cast<int>(servers_.size()); ++i) {
      while (*StatusOf(i).Find("saving") == Value(true)) std::this_thread::yield();
    }
  }
  Value StatusOf(int server) {
    return DecodeJson(servers_[static_cast<std::size_t>(server)]->StatusText()).value();
  }

  std::string directory_;
  std::string load_;
  int trainers_ = 2;
  Mode mode_ = Mode::kSync;
  Recovery recovery_ = Recovery::kExact;
  std::optional<std::int64_t> full_steps_ = 10;
  std::optional<std::int64_t> incremental_steps_ = 3;
  bool quantize_ = false;
  bool paced_ =
      false;  // no step begins while a checkpoint is written: each that is due comes about
  std::vector<std::unique_ptr<Server>> servers_;
  std::atomic<std::uint64_t> rollbacks_{0};
};

}  // namespace cairn::ps
