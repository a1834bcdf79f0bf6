#include "cli/console.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>

#include "cli/output.h"

namespace cairn::cli {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPatience{1000};
constexpr milliseconds kRedraw{100};

volatile std::sig_atomic_t caught_signal = 0;

void OnSignal(int signal) { caught_signal = signal; }

int TerminalColumns() {
  winsize size{};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

double Seconds(Clock::Duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

ProgressBar::ProgressBar(std::string label, Clock* clock, bool enabled)
    : label_(std::move(label)), clock_(clock), enabled_(enabled), begun_(clock->Now()) {}

ProgressBar::~ProgressBar() { Clear(); }

void ProgressBar::Clear() {
  if (!visible_) return;
  std::fputs("\r\033[K", stderr);
  std::fflush(stderr);
  visible_ = false;
}

void ProgressBar::Update(std::uint64_t done, std::uint64_t total) {
  if (!enabled_ || total == 0) return;
  const Clock::Duration now = clock_->Now();
  if (now - begun_ < kPatience || (visible_ && now - drawn_ < kRedraw)) return;
  drawn_ = now;
  visible_ = true;
  done = std::min(done, total);
  const double part = static_cast<double>(done) / static_cast<double>(total);
  const double rate = static_cast<double>(done) / Seconds(now - begun_);
  const double left = rate > 0 ? static_cast<double>(total - done) / rate : 0;
  const std::string numbers =
      fmt::format(" {:3.0f} %  {} of {}  {}  {:.0f} s left", part * 100, HumanBytes(done),
                  HumanBytes(total), HumanRate(rate), left);
  std::string line = label_ + " ";
  const int room = TerminalColumns() - static_cast<int>(line.size() + numbers.size()) - 3;
  if (room >= 10) {
    const int width = std::min(room, 40);
    const int full = static_cast<int>(part * width);
    line += "[" + std::string(static_cast<std::size_t>(full), '#') +
            std::string(static_cast<std::size_t>(width - full), '.') + "]";
  }
  std::fputs(("\r\033[K" + line + numbers).c_str(), stderr);
  std::fflush(stderr);
}

Progress ProgressBar::callback() {
  return [this](std::uint64_t done, std::uint64_t total) { Update(done, total); };
}

Console::Console(bool json)
    : json_(json), clock_(Clock::System()), progress_(isatty(STDERR_FILENO) == 1) {}

void Console::Note(std::string_view text) const {
  if (json_) return;
  std::fputs((PrintableLines(text) + "\n").c_str(), stderr);
}

Result<bool> Console::Ask(const std::string& question, const std::string& without_terminal) const {
  if (isatty(STDIN_FILENO) != 1 || isatty(STDERR_FILENO) != 1) {
    return FailedPreconditionError(without_terminal);
  }
  std::fputs((Printable(question) + " [y/N] ").c_str(), stderr);
  std::fflush(stderr);
  std::string answer;
  for (;;) {
    char c = 0;
    const ssize_t n = read(STDIN_FILENO, &c, 1);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return CancelledError("no answer");
    if (c == '\n') break;
    answer += c;
  }
  return answer == "y" || answer == "Y" || answer == "yes";
}

void Console::CatchInterrupts() {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction current{};
    // A parent that ignores a signal (nohup) means it for us too.
    if (sigaction(signal, nullptr, &current) == 0 && current.sa_handler == SIG_IGN) continue;
    struct sigaction action{};
    action.sa_handler = OnSignal;
    action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
    sigemptyset(&action.sa_mask);
    sigaction(signal, &action, nullptr);
  }
}

bool Console::interrupted() { return caught_signal != 0; }

void Console::EndByCaughtSignal() {
  if (caught_signal == 0) return;
  const int signal = caught_signal;
  std::signal(signal, SIG_DFL);
  raise(signal);
}

TransferControl Console::Control(ProgressBar* bar) const {
  TransferControl control;
  control.progress = bar->callback();
  control.cancelled = [] { return interrupted(); };
  return control;
}

}  // namespace cairn::cli
