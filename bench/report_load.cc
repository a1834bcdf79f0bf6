// What bench/master.py sends to a master: reports over many connections by one thread, which costs
// little beside the master that it measures.
//   report_load PORT REPORTS FIRST < RUNS     a line "PATH TOKEN" for each run; REPORTS of each
//   run, one after the other, numbered from FIRST
// Prints the seconds until the last was acknowledged.

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

namespace {

[[noreturn]] void Fail(const std::string& what) {
  fmt::print(stderr, "report_load: {}\n", what);
  std::exit(1);
}

/// A run with its connection. At most one of its reports is on the way.
class Reporter {
 public:
  Reporter(std::uint16_t port, std::string path, std::string token)
      : path_(std::move(path)), token_(std::move(token)) {
    socket_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int on = 1;
    setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
      Fail(fmt::format("cannot connect to port {}", port));
    }
  }

  int socket() const { return socket_; }

  void Send(std::int64_t number) {
    const std::string body = fmt::format(
        R"({{"sequence":{0},"group":"training","steps_completed":{0},"metrics":{{"loss":{1},"accuracy":0.5,"samples":{2}}}}})",
        number, 1.0 / static_cast<double>(number), 32 * number);
    const std::string request = fmt::format(
        "POST {}/reports HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {}\r\n"
        "Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{}",
        path_, token_, body.size(), body);
    // Far smaller than the socket's buffer, which is empty.
    if (write(socket_, request.data(), request.size()) != static_cast<ssize_t>(request.size())) {
      Fail("the master does not take a request");
    }
  }

  /// Reads what there is. Whether the answer is whole.
  bool Receive() {
    char buffer[4096];
    const ssize_t got = read(socket_, buffer, sizeof buffer);
    if (got <= 0) Fail("the master closed a connection");
    answer_.append(buffer, static_cast<std::size_t>(got));
    const std::size_t head = answer_.find("\r\n\r\n");
    if (head == std::string::npos) return false;
    if (answer_.compare(0, 10, "HTTP/1.1 2") != 0) Fail(answer_.substr(0, 300));
    if (answer_.size() < head + 4 + Length(std::string_view(answer_).substr(0, head))) return false;
    answer_.clear();
    return true;
  }

 private:
  static std::size_t Length(std::string_view head) {
    constexpr std::string_view kName = "\r\nContent-Length: ";
    const std::size_t at = head.find(kName);
    std::size_t length = 0;
    if (at != std::string_view::npos) {
      std::from_chars(head.data() + at + kName.size(), head.data() + head.size(), length);
    }
    return length;
  }

  std::string path_;
  std::string token_;
  std::string answer_;
  int socket_;
};

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) Fail("report_load PORT REPORTS FIRST < RUNS");
  const auto port = static_cast<std::uint16_t>(std::atoi(argv[1]));
  const std::int64_t count = std::atoll(argv[2]);
  const std::int64_t first = std::atoll(argv[3]);
  std::vector<Reporter> reporters;
  std::vector<pollfd> waiting;
  for (std::string path, token; std::cin >> path >> token;) {
    reporters.emplace_back(port, path, token);
    waiting.push_back({reporters.back().socket(), POLLIN, 0});
  }
  std::vector<std::int64_t> sent(reporters.size(), 1);
  const double began = Now();
  for (Reporter& reporter : reporters) reporter.Send(first);
  for (std::size_t busy = reporters.size(); busy > 0;) {
    if (poll(waiting.data(), waiting.size(), 60'000) <= 0) Fail("no answer within a minute");
    for (std::size_t i = 0; i < reporters.size(); ++i) {
      if (waiting[i].revents == 0 || !reporters[i].Receive()) continue;
      if (sent[i] == count) {
        waiting[i].fd = -1;  // passed over from now on
        --busy;
      } else {
        reporters[i].Send(first + sent[i]++);
      }
    }
  }
  fmt::print("{}\n", Now() - began);
  return 0;
}
