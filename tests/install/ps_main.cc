// The same with the component ps: a server and a trainer of it in one process.

#include <array>
#include <cstdint>
#include <cstdio>
#include <string>

#include <cairn/ps.h>

int main() {
  const auto server = cairn::ps::Server::Start({.directory = "served"});
  if (!server.ok()) {
    std::fprintf(stderr, "server: %s\n", server.status().ToString().c_str());
    return 1;
  }
  const auto client =
      cairn::ps::Client::Connect({.servers = {"127.0.0.1:" + std::to_string((*server)->port())}});
  if (!client.ok()) {
    std::fprintf(stderr, "client: %s\n", client.status().ToString().c_str());
    return 1;
  }
  const auto users = (*client)->Table({.name = "users",
                                       .dim = 2,
                                       .optimizer = {.kind = "sgd"},
                                       .initializer = {.kind = "constant", .a = 3}});
  const std::array<std::int64_t, 2> ids = {7, 9};
  std::array<float, 4> rows = {};
  const cairn::Status looked = users.ok() ? (*users)->Lookup(ids, rows) : users.status();
  const cairn::Status ended = looked.ok() ? (*client)->EndStep("{}") : looked;
  if (!ended.ok() || rows != std::array<float, 4>{3, 3, 3, 3} || (*client)->step() != 1) {
    std::fprintf(stderr, "step: %s\n", ended.ToString().c_str());
    return 1;
  }
  const cairn::Status closed = (*client)->Close();
  if (!closed.ok()) {
    std::fprintf(stderr, "close: %s\n", closed.ToString().c_str());
    return 1;
  }
  (*server)->Stop();
  std::puts("ok");
  return 0;
}
