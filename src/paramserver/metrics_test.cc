#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "net/http_client.h"
#include "paramserver/job_fixture.h"
#include "paramserver/metrics_page.h"

// What a server tells those who ask by HTTP.

namespace cairn::ps {
namespace {

class MetricsTest : public JobTest {
 protected:
  HttpResponse Ask(const Server& server, const std::string& path, const std::string& token = "") {
    HttpRequest request;
    request.method = "GET";
    request.url = "http://127.0.0.1:" + std::to_string(server.metrics_port()) + path;
    if (!token.empty()) request.headers.push_back({"Authorization", "Bearer " + token});
    auto response = client_->Fetch(std::move(request));
    EXPECT_TRUE(response.ok()) << response.status().ToString();
    return response.ok() ? *std::move(response) : HttpResponse();
  }

  std::unique_ptr<HttpClient> client_ = HttpClient::Open({.retry = {.max_attempts = 1}}).value();
};

TEST_F(MetricsTest, PrometheusAsksByHttp) {
  ServerOptions options = Options(0, 1);
  options.metrics = "0";
  options.trainers = 1;
  options.security.token = "secret";
  auto server = Server::Start(options).value();
  ASSERT_GT(server->metrics_port(), 0);
  while (Ask(*server, "/healthz").status == 503) std::this_thread::yield();
  EXPECT_EQ(Ask(*server, "/healthz").status, 200);
  EXPECT_EQ(Ask(*server, "/metrics").status, 401);
  EXPECT_EQ(Ask(*server, "/metrics", "guess").status, 401);
  const HttpResponse page = Ask(*server, "/metrics", "secret");
  EXPECT_EQ(page.status, 200);
  EXPECT_NE(page.body.find("\ncairn_ps_up 1\n"), std::string::npos) << page.body;
  EXPECT_NE(page.body.find("\ncairn_ps_pushes_total 0\n"), std::string::npos) << page.body;
  EXPECT_EQ(Ask(*server, "/else").status, 404);
  server->Stop();
  EXPECT_EQ(Ask(*server, "/healthz").status, 503) << "it serves no more";
  EXPECT_NE(Ask(*server, "/metrics", "secret").body.find("\ncairn_ps_up 0\n"), std::string::npos);
}

TEST_F(MetricsTest, IsOnThisMachineAloneUnlessToldOtherwise) {
  EXPECT_EQ(MetricsAddress("9100").value(), "127.0.0.1:9100");
  EXPECT_EQ(MetricsAddress(":9100").value(), "127.0.0.1:9100");
  EXPECT_EQ(MetricsAddress("0.0.0.0:9100").value(), "0.0.0.0:9100");
  for (const std::string wrong : {"host", "host:", "host:x", "host:65536", "-1", "1 "}) {
    EXPECT_EQ(MetricsAddress(wrong).status().code(), Code::kInvalidArgument) << wrong;
    ServerOptions options = Options(0, 1);
    options.metrics = wrong;
    EXPECT_EQ(options.Validate().code(), Code::kInvalidArgument) << wrong;
  }
  StartServers(1);
  EXPECT_EQ(servers_[0]->metrics_port(), 0) << "nowhere, unless it is asked for";
}

}  // namespace
}  // namespace cairn::ps
