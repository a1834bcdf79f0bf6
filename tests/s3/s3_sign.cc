// Signs requests for tests that compare signatures with other signers': a JSON object a line on
// standard input, the value of its Authorization header a line on standard output.

#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "storage/s3/sigv4.h"

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    const auto json = nlohmann::json::parse(line);
    const cairn::S3Credentials credentials{
        .access_key = "AKID", .secret_key = "secret/key+", .session_token = json.at("token")};
    cairn::SigningRequest request;
    request.method = json.at("method");
    request.path = json.at("path");
    for (const auto& pair : json.at("query")) request.query.emplace_back(pair.at(0), pair.at(1));
    for (const auto& [name, value] : json.at("headers").items()) {
      request.headers.push_back({name, value});
    }
    request.payload_hash = json.at("payload");
    const std::string date =
        cairn::SigningDate(json.at("time").get<std::int64_t>() * 1'000'000'000);
    request.headers.push_back({"host", "bucket.example.org"});
    request.headers.push_back({"x-amz-date", date});
    request.headers.push_back({"x-amz-content-sha256", request.payload_hash});
    if (!credentials.session_token.empty()) {
      request.headers.push_back({"x-amz-security-token", credentials.session_token});
    }
    const std::string region = json.at("region");
    std::cout << cairn::SignV4(request, credentials, date, region, "s3") << "\n";
  }
}
