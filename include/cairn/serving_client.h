#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <cairn/status.h>

namespace cairn::serving {

struct LookupClientOptions {
  std::string address;      // host:port of `cairn serve --grpc`
  std::string token;        // "": none
  std::string ca;           // PEM file of who signed the server's certificate; "": no TLS
  std::string server_name;  // in the certificate, where it is not the address's
  /// For a call, with its connection where there is none.
  std::chrono::milliseconds timeout{5000};
  std::uint64_t max_answer_bytes = 256u << 20;
};

/// Asks a server for rows of tables, by gRPC and without text in between.
///
///   auto client = cairn::serving::LookupClient::Connect({.address = "host:8001"}).value();
///   auto found = client->Lookup({{{.table = "users", .ids = users}, {.table = "items",
///                                 .ids = items}}}).value();   // both of one version
///
/// Calls may come from several threads and take turns. A connection that broke is opened again by
/// the next call, and by the call that found it broken, once. Linked with the CMake target
/// cairn::ps.
class LookupClient {
 public:
  struct Wanted {
    std::string table;
    std::span<const std::int64_t> ids;  // any, also several times
    std::uint32_t dim = 0;              // that the rows must have; 0: whichever
  };
  struct Rows {
    std::uint32_t dim = 0;
    std::vector<float> values;  // `dim` for each id; the table's default where there is no row
  };
  /// All of one version.
  struct Found {
    std::int64_t step = 0;
    std::string id;            // of the checkpoint
    std::vector<Rows> tables;  // as they were asked for
  };

  /// Unavailable when nobody answers.
  static Result<std::unique_ptr<LookupClient>> Connect(LookupClientOptions options);
  virtual ~LookupClient() = default;

  /// InvalidArgument and NotFound name the field; ResourceExhausted: more rows than the server
  /// gives at once; PermissionDenied: the token; Unavailable: no version yet, or nobody there;
  /// DeadlineExceeded.
  virtual Result<Found> Lookup(std::span<const Wanted> wanted) = 0;
};

}  // namespace cairn::serving
