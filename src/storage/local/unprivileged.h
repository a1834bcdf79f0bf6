#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>

namespace cairn {

/// Runs `check` in a child that has no more rights than its modes give it, also where the tests run
/// as root. "" when it returned "", otherwise what it returned. No thread may be running.
inline std::string RunUnprivileged(const std::function<std::string()>& check) {
  int pipe_ends[2];
  if (pipe(pipe_ends) != 0) return "pipe failed";
  const pid_t child = fork();
  if (child < 0) return "fork failed";
  if (child == 0) {
    constexpr unsigned kNobody = 65534;
    alarm(300);  // ends a child that hangs
    std::string wrong;
    if (geteuid() == 0 &&
        (setresgid(kNobody, kNobody, kNobody) != 0 || setresuid(kNobody, kNobody, kNobody) != 0)) {
      wrong = "the rights cannot be given up";
    } else {
      wrong = check();
    }
    const char* at = wrong.data();
    for (std::size_t left = wrong.size(); left > 0;) {
      const ssize_t n = write(pipe_ends[1], at, left);
      if (n <= 0) break;
      at += n;
      left -= static_cast<std::size_t>(n);
    }
    _exit(wrong.empty() ? 0 : 1);
  }
  close(pipe_ends[1]);
  std::string wrong;
  char piece[4096];
  for (ssize_t n = 0; (n = read(pipe_ends[0], piece, sizeof piece)) > 0;) {
    wrong.append(piece, static_cast<std::size_t>(n));
  }
  close(pipe_ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (wrong.empty() && status != 0) wrong = "the child ended with status " + std::to_string(status);
  return wrong;
}

}  // namespace cairn
