#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <cairn/status.h>

#include "base/variables.h"
#include "net/http_client.h"

namespace cairn {

/// What Ray says of a job that was submitted to it.
struct RayJob {
  std::string id;             // its submission_id
  std::string status;         // "PENDING", "RUNNING", "STOPPED", "SUCCEEDED", "FAILED"
  std::string message;        // Ray's words for people
  std::string error;          // of "FAILED": "JOB_SUPERVISOR_ACTOR_START_TIMEOUT", …
  std::string node;           // the id of the node on which it runs or ran
  bool exited = false;        // how its entrypoint ended is known
  std::int64_t end_time = 0;  // milliseconds since 1970; 0: it lives
  std::map<std::string, std::string> metadata;  // as it was submitted

  bool pending() const { return status == "PENDING"; }
  /// Nothing of it runs or will, by all that Ray knows.
  bool ended() const { return status != "PENDING" && status != "RUNNING"; }
  /// Its entrypoint is dead, for Ray has seen it die; of one that merely `ended`, Ray knows no
  /// more.
  bool process_ended() const { return status == "STOPPED" || status == "SUCCEEDED" || exited; }
  /// Ray gave it up because nothing was free for it in time (15 minutes, unless the site says so).
  bool gave_up_waiting() const;
  /// It was taken from its launch, not failed by it: somebody stopped it, or its node is gone.
  bool taken_away() const;
};

/// What a launch asks Ray for, of each of its nodes.
struct RayResources {
  int nodes = 1;
  double num_cpus = 0;
  double num_gpus = 0;
  std::uint64_t memory = 0;              // bytes
  std::map<std::string, double> custom;  // by name
};

/// Reads resources. Known: nodes, which share the `processes` evenly; num_cpus (without it one for
/// each process of a node), num_gpus, memory (bytes, or with K, M, G) and custom
/// ("name=1,other=0.5"). InvalidArgument names what is not known or no such number.
Result<RayResources> ReadRayResources(const std::map<std::string, std::string>& resources,
                                      int processes);

/// Where a Ray is and by what it knows us.
struct RayAddress {
  std::string url;    // http:// or https://, of its dashboard
  std::string token;  // "": it asks for none
};

/// As Ray's own programs find it. The address: `url`, or RAY_API_SERVER_ADDRESS, or RAY_ADDRESS
/// where that is a URL, or http://127.0.0.1:8265. The token: what `token_file` holds, or
/// RAY_AUTH_TOKEN, or what RAY_AUTH_TOKEN_PATH or ~/.ray/auth_token hold, or none. InvalidArgument:
/// no URL; NotFound: no such file.
Result<RayAddress> FindRay(const std::string& url, const std::string& token_file,
                           const Variables& variables = ProcessVariables());

/// The jobs in an answer to `GET /api/jobs/`; drivers that were not submitted are left out.
/// Corruption: it is none.
Result<std::vector<RayJob>> ParseRayJobs(std::string_view text);

/// A job that is to be.
struct RayJobRequest {
  std::string id;          // its submission_id: Ray takes each once
  std::string entrypoint;  // for /bin/sh
  RayResources resources;
  std::map<std::string, std::string> metadata;
  std::map<std::string, std::string> environment;  // of the entrypoint
};

/// Ray's Jobs REST. Each call is one request and waits for its answer; from any thread. Errors:
/// Unavailable and DeadlineExceeded (no answer: it may have been done), PermissionDenied (the
/// token), InvalidArgument (refused, in Ray's words), FailedPrecondition (what answers there is no
/// Ray).
class RayClient {
 public:
  static Result<std::unique_ptr<RayClient>> Open(RayAddress address);

  const std::string& url() const { return address_.url; }

  /// Which Ray that is: "2.9.0".
  Result<std::string> Version();
  /// Hands a job over. OK also when Ray has one of that id: then it is this one.
  Status Submit(const RayJobRequest& request);
  /// All that Ray has a record of, of everybody.
  Result<std::vector<RayJob>> Jobs();
  /// SIGTERM to all of its processes, later SIGKILL. One that waits is not taken out of Ray's
  /// queue by it. OK when Ray does not know it.
  Status Stop(const std::string& id);
  /// Removes Ray's record of a job that has ended. OK when there is none.
  Status Forget(const std::string& id);

 private:
  explicit RayClient(RayAddress address) : address_(std::move(address)) {}
  Result<HttpResponse> Call(std::string method, const std::string& path, std::string_view body);

  const RayAddress address_;
  std::unique_ptr<HttpClient> http_;
};

}  // namespace cairn
