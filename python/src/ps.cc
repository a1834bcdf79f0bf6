// The module _ps: parameter servers. Apart from _native, because it is linked with gRPC.

#include <cairn/ps.h>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "src/errors.h"
#include "src/gil.h"
#include "src/lookup.h"

namespace nb = nanobind;

namespace cairn::python {
namespace {

constexpr std::chrono::milliseconds kBetweenLooks{20};

using Ids = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;
using OutFloats = nb::ndarray<float, nb::c_contig, nb::device::cpu>;

std::span<const std::int64_t> Span(const Ids& ids) { return {ids.data(), ids.size()}; }
std::span<const float> Span(const Floats& rows) { return {rows.data(), rows.size()}; }
std::span<float> Span(const OutFloats& rows) { return {rows.data(), rows.size()}; }

ps::OptimizerSpec ToOptimizer(const nb::handle& described) {
  const auto [kind, settings] =
      nb::cast<std::pair<std::string, std::map<std::string, double>>>(described);
  return {kind, settings};
}

ps::TableSpec ToTable(const nb::dict& settings) {
  ps::TableSpec spec;
  spec.name = nb::cast<std::string>(settings["name"]);
  spec.dim = nb::cast<std::uint32_t>(settings["dim"]);
  const auto dtype = DTypeFromName(nb::cast<std::string>(settings["dtype"]));
  if (!dtype) Raise(InvalidArgumentError("table \"" + spec.name + "\": unknown dtype"));
  spec.dtype = *dtype;
  spec.optimizer = ToOptimizer(settings["optimizer"]);
  const auto [kind, a, b] =
      nb::cast<std::tuple<std::string, double, double>>(settings["initializer"]);
  spec.initializer = {kind, a, b};
  spec.seed = nb::cast<std::uint64_t>(settings["seed"]);
  spec.admission = nb::cast<std::optional<std::uint32_t>>(settings["admission"]);
  spec.steps_to_live = nb::cast<std::optional<std::int64_t>>(settings["steps_to_live"]);
  spec.min_l2_norm = nb::cast<std::optional<double>>(settings["min_l2_norm"]);
  return spec;
}

/// A client, with Ctrl-C and the exception for a job that went back. Calls of several Python
/// threads take turns: what is behind it is for one thread at a time.
class Client {
 public:
  explicit Client(const nb::dict& settings) {
    ps::ClientOptions options;
    options.servers = nb::cast<std::vector<std::string>>(settings["servers"]);
    options.directory = nb::cast<std::string>(settings["directory"]);
    options.num_servers = nb::cast<int>(settings["num_servers"]);
    options.trainer = nb::cast<int>(settings["trainer"]);
    options.trainers = nb::cast<int>(settings["trainers"]);
    options.security.token = nb::cast<std::string>(settings["token"]);
    options.security.ca = nb::cast<std::string>(settings["ca"]);
    options.security.server_name = nb::cast<std::string>(settings["server_name"]);
    const auto transport = nb::cast<std::string>(settings["transport"]);
    options.transport = ValueOrRaise(ps::TransportFromName(transport));
    options.request_timeout = Millis(nb::cast<double>(settings["request_timeout"]));
    options.reconnect_timeout = Millis(nb::cast<double>(settings["reconnect_timeout"]));
    options.cancelled = [this] { return Interrupted(); };
    std::optional<Result<std::unique_ptr<ps::Client>>> connected;
    {
      const WithoutGil released;
      connected.emplace(ps::Client::Connect(options));
    }
    RethrowInterrupt();
    client_ = ValueOrRaise(*std::move(connected));
  }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;
  ~Client() {
    const WithoutGil released;
    client_ = nullptr;
  }

  ps::Client* operator->() const { return client_.get(); }

  /// What `fn` finds between two calls of other threads.
  template <typename Fn>
  auto Look(const Fn& fn) {
    // A signal handler that runs in the middle of a call of this thread may look, too.
    if (InsideOfACall()) return fn(*client_);
    const Turn turn(this);
    return fn(*client_);
  }

  /// Runs `fn` without the GIL; it may wait for lost servers and is then interruptible.
  template <typename Fn>
  void Run(const Fn& fn) {
    const Turn turn(this);
    Status status;
    {
      const WithoutGil released;
      status = fn();
    }
    Check(status);
  }
  /// The same for calls that wait for others in the middle of an answer: on another thread, so that
  /// this one can look for signals.
  template <typename Fn>
  void RunWaiting(const Fn& fn) {
    const Turn turn(this);
    auto done = std::async(std::launch::async, fn);
    bool interrupted = false;
    for (;;) {
      bool ready = false;
      {
        const WithoutGil released;
        ready = done.wait_for(kBetweenLooks) == std::future_status::ready;
      }
      if (ready) break;
      if (!interrupted && PyErr_CheckSignals() != 0) {
        raised_.emplace();
        interrupted = true;
        client_->Cancel();
      }
    }
    Check(done.get());
  }

 private:
  /// Made and given up with the GIL; waits without it, so that the one whose turn it is can end.
  class Turn {
   public:
    explicit Turn(Client* client) : client_(client) {
      if (client_->InsideOfACall()) {
        Raise(FailedPreconditionError(
            "a signal handler was called in the middle of a call of this client, and calls it "
            "again: let it leave a note, and call the client when that call is over"));
      }
      while (!client_->turn_.try_lock()) {
        {
          const WithoutGil released;
          if (client_->turn_.try_lock_for(kBetweenLooks)) break;
        }
        if (PyErr_CheckSignals() != 0) throw nb::python_error();
      }
      client_->calling_ = std::this_thread::get_id();
    }
    ~Turn() {
      client_->calling_ = std::thread::id();
      client_->turn_.unlock();
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    Client* const client_;
  };

  bool InsideOfACall() const { return calling_ == std::this_thread::get_id(); }
  static std::chrono::milliseconds Millis(double seconds) {
    return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
  }
  bool Interrupted() {
    const WithGil gil;
    if (raised_) return true;
    if (PyErr_CheckSignals() == 0) return false;
    raised_.emplace();
    return true;
  }
  void RethrowInterrupt() {
    if (raised_) throw nb::python_error(*raised_);
  }
  void Check(const Status& status) {
    RethrowInterrupt();
    if (status.Is(Code::kAborted)) {
      const nb::object error = nb::module_::import_("cairn.ps").attr("RolledBack")(client_->step());
      PyErr_SetObject(error.type().ptr(), error.ptr());
      throw nb::python_error();
    }
    RaiseIfError(status);
  }

  std::unique_ptr<ps::Client> client_;
  std::optional<nb::python_error> raised_;
  std::timed_mutex turn_;
  std::atomic<std::thread::id> calling_;  // whose turn it is
};

class Table {
 public:
  Table(Client* client, ps::RemoteTable* table) : client_(client), table_(table) {}

  void Lookup(const Ids& ids, const OutFloats& out, bool create) {
    client_->Run([&] {
      return table_->Lookup(Span(ids), Span(out), create ? Missing::kCreate : Missing::kInitial);
    });
  }
  void ApplyGradients(const Ids& ids, const Floats& rows) {
    client_->Run([&] { return table_->ApplyGradients(Span(ids), Span(rows)); });
  }
  void Assign(const Ids& ids, const Floats& rows) {
    client_->Run([&] { return table_->Assign(Span(ids), Span(rows)); });
  }
  std::uint64_t Erase(const Ids& ids) {
    return Get<std::uint64_t>([&] { return table_->Erase(Span(ids)); });
  }
  /// (rows, pending); None: not known yet.
  std::optional<std::pair<std::uint64_t, std::uint64_t>> Evict(std::int64_t step) {
    using Told = std::optional<EvictReport>;
    const Told evicted = Get<Told>([&] { return table_->Evict(step); });
    if (!evicted) return std::nullopt;
    return std::pair(evicted->rows, evicted->pending);
  }
  void SetLearningRate(float rate) {
    client_->Run([&] { return table_->SetLearningRate(rate); });
  }
  float LearningRate() {
    return Get<float>([&] { return table_->LearningRate(); });
  }
  std::uint64_t Size() {
    return Get<std::uint64_t>([&] { return table_->Size(); });
  }
  /// (keys, frequency, version, weights, slots) as bytes.
  nb::tuple Export() {
    const auto content = Get<ps::TableContent>([&] { return table_->Content(); });
    const auto bytes = [](const auto& column) {
      return nb::bytes(reinterpret_cast<const char*>(column.data()),
                       column.size() * sizeof(column[0]));
    };
    return nb::make_tuple(bytes(content.keys), bytes(content.frequency), bytes(content.version),
                          bytes(content.weights), bytes(content.slots));
  }

 private:
  template <typename T, typename Fn>
  T Get(const Fn& fn) {
    std::optional<T> value;
    client_->Run([&]() -> Status {
      auto result = fn();
      if (!result.ok()) return result.status();
      value = std::move(result).value();
      return Status::Ok();
    });
    return *std::move(value);
  }

  Client* const client_;  // kept alive by Python
  ps::RemoteTable* const table_;
};

class Dense {
 public:
  Dense(Client* client, ps::RemoteDense* dense) : client_(client), dense_(dense) {}
  void Pull(const OutFloats& out) {
    client_->Run([&] { return dense_->Pull(Span(out)); });
  }
  void Push(const Floats& gradient) {
    client_->Run([&] { return dense_->Push(Span(gradient)); });
  }

 private:
  Client* const client_;
  ps::RemoteDense* const dense_;
};

std::unique_ptr<Table> MakeTable(Client* client, const nb::dict& settings) {
  const ps::TableSpec spec = ToTable(settings);
  ps::RemoteTable* table = nullptr;
  client->Run([&]() -> Status {
    auto made = (*client)->Table(spec);
    if (!made.ok()) return made.status();
    table = *made;
    return Status::Ok();
  });
  return std::make_unique<Table>(client, table);
}

std::unique_ptr<Dense> MakeDense(Client* client, const std::string& name,
                                 const std::vector<std::uint64_t>& shape,
                                 const nb::handle& optimizer, const Floats& initial) {
  const ps::DenseSpec spec{name, shape, ToOptimizer(optimizer)};
  ps::RemoteDense* dense = nullptr;
  client->Run([&]() -> Status {
    auto made = (*client)->Dense(spec, Span(initial));
    if (!made.ok()) return made.status();
    dense = *made;
    return Status::Ok();
  });
  return std::make_unique<Dense>(client, dense);
}

/// A copy of what a client tells about itself.
template <auto kMember>
auto LookedUp(Client* client) {
  return client->Look([](const ps::Client& inner) { return (inner.*kMember)(); });
}

std::string TextOf(Client* client, bool metrics, int server) {
  std::string text;
  client->Run([&]() -> Status {
    auto result = metrics ? (*client)->MetricsOf(server) : (*client)->StatusOf(server);
    if (!result.ok()) return result.status();
    text = std::move(result).value();
    return Status::Ok();
  });
  return text;
}

std::unique_ptr<ps::Server> StartServer(const nb::dict& settings) {
  ps::ServerOptions options;
  options.listen = nb::cast<std::string>(settings["listen"]);
  options.address = nb::cast<std::string>(settings["address"]);
  options.directory = nb::cast<std::string>(settings["directory"]);
  options.index = nb::cast<int>(settings["index"]);
  options.servers = nb::cast<int>(settings["servers"]);
  options.trainers = nb::cast<int>(settings["trainers"]);
  options.mode =
      nb::cast<std::string>(settings["mode"]) == "async" ? ps::Mode::kAsync : ps::Mode::kSync;
  options.full_secs = nb::cast<std::optional<double>>(settings["full_secs"]);
  options.incremental_secs = nb::cast<std::optional<double>>(settings["incremental_secs"]);
  options.full_steps = nb::cast<std::optional<std::int64_t>>(settings["full_steps"]);
  options.incremental_steps = nb::cast<std::optional<std::int64_t>>(settings["incremental_steps"]);
  options.quantize = nb::cast<bool>(settings["quantize"]);
  options.max_to_keep = nb::cast<std::optional<std::uint64_t>>(settings["max_to_keep"]);
  options.load = nb::cast<std::string>(settings["load"]);
  options.security.token = nb::cast<std::string>(settings["token"]);
  options.security.certificate = nb::cast<std::string>(settings["certificate"]);
  options.security.key = nb::cast<std::string>(settings["key"]);
  options.security.ca = nb::cast<std::string>(settings["ca"]);
  options.security.server_name = nb::cast<std::string>(settings["server_name"]);
  const auto recovery = nb::cast<std::string>(settings["recovery"]);
  options.recovery = recovery == "log"       ? ps::Recovery::kLog
                     : recovery == "partial" ? ps::Recovery::kPartial
                                             : ps::Recovery::kExact;
  options.log_directory = nb::cast<std::string>(settings["log_dir"]);
  options.log_level = nb::cast<std::string>(settings["log_level"]) == "synced"
                          ? ps::LogLevel::kSynced
                          : ps::LogLevel::kWritten;
  std::optional<Result<std::unique_ptr<ps::Server>>> started;
  {
    const WithoutGil released;
    started.emplace(ps::Server::Start(options));
  }
  return ValueOrRaise(*std::move(started));
}

void WaitServer(ps::Server* server) {
  auto done = std::async(std::launch::async, [server] { return server->Wait(); });
  std::optional<nb::python_error> raised;
  for (;;) {
    bool ready = false;
    {
      const WithoutGil released;
      ready = done.wait_for(kBetweenLooks) == std::future_status::ready;
    }
    if (ready) break;
    if (!raised && PyErr_CheckSignals() != 0) {
      raised.emplace();
      const WithoutGil released;
      server->Stop();
    }
  }
  const Status status = done.get();
  if (raised) throw nb::python_error(*raised);
  RaiseIfError(status);
}

}  // namespace

NB_MODULE(_ps, module) {
  DefineLookup(module);
  nb::class_<Table>(module, "Table")
      .def("lookup", &Table::Lookup)
      .def("apply_gradients", &Table::ApplyGradients)
      .def("assign", &Table::Assign)
      .def("erase", &Table::Erase)
      .def("evict", &Table::Evict)
      .def("learning_rate", &Table::LearningRate)
      .def("set_learning_rate", &Table::SetLearningRate)
      .def("size", &Table::Size)
      .def("export", &Table::Export);
  nb::class_<Dense>(module, "Dense").def("pull", &Dense::Pull).def("push", &Dense::Push);
  nb::class_<Client>(module, "Client")
      .def(nb::init<const nb::dict&>())
      .def("table", &MakeTable, nb::keep_alive<0, 1>())
      .def("dense", &MakeDense, nb::keep_alive<0, 1>())
      .def("end_step",
           [](Client* client, std::string state) {
             client->RunWaiting([&] { return (*client)->EndStep(state); });
           })
      .def("set_state",
           [](Client* client, std::string state) {
             client->RunWaiting([&] { return (*client)->SetState(state); });
           })
      .def("barrier",
           [](Client* client) { client->RunWaiting([&] { return (*client)->Barrier(); }); })
      .def("request_save",
           [](Client* client, bool full) {
             client->Run([&] { return (*client)->RequestSave(full); });
           })
      .def("save_persistables",
           [](Client* client, const std::string& directory) {
             std::string path;
             client->Run([&]() -> Status {
               auto saved = (*client)->SavePersistables(directory);
               if (!saved.ok()) return saved.status();
               path = std::move(saved).value();
               return Status::Ok();
             });
             return path;
           })
      .def("close", [](Client* client) { client->Run([&] { return (*client)->Close(); }); })
      .def("status", [](Client* client, int server) { return TextOf(client, false, server); })
      .def("metrics", [](Client* client, int server) { return TextOf(client, true, server); })
      .def_prop_ro("step", &LookedUp<&ps::Client::step>)
      .def_prop_ro("state", &LookedUp<&ps::Client::state>)
      .def_prop_ro("servers", &LookedUp<&ps::Client::servers>)
      .def_prop_ro(
          "sync",
          [](Client* client) { return LookedUp<&ps::Client::mode>(client) == ps::Mode::kSync; })
      .def_prop_ro("rollbacks", &LookedUp<&ps::Client::rollbacks>)
      .def_prop_ro("generation", &LookedUp<&ps::Client::generation>);
  nb::class_<ps::Server>(module, "Server")
      .def_static("start", &StartServer)
      .def_prop_ro("port", &ps::Server::port)
      .def("stop",
           [](ps::Server* server) {
             const WithoutGil released;
             server->Stop();
           })
      .def("wait", &WaitServer)
      .def("status",
           [](ps::Server* server) {
             const WithoutGil released;
             return server->StatusText();
           })
      .def("metrics", [](ps::Server* server) {
        const WithoutGil released;
        return server->MetricsText();
      });
}

}  // namespace cairn::python
