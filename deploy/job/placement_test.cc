#include "deploy/job/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "absl/strings/str_cat.h"
#include "tests/testing/test_seed.h"

namespace thermocline {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Host MakeHost(const std::string& name, uint64_t memory_bytes, uint32_t gpus = 0) {
  Host host;
  host.name = name;
  host.nonce = 1;
  host.memory_bytes = memory_bytes;
  host.gpus = gpus;
  return host;
}

TEST(Placement, SpreadsEvenlyOverEqualHosts) {
  const auto placed =
      Place({MakeHost("h2", 64), MakeHost("h1", 64), MakeHost("h3", 64)}, 4, 2, Job::AUTO);
  ASSERT_TRUE(placed.ok()) << placed.status();
  EXPECT_THAT(placed->servers, ElementsAre("h1", "h1", "h2", "h3"));
  EXPECT_THAT(placed->workers, ElementsAre("h1", "h2"));
  EXPECT_THAT(placed->local_ranks, ElementsAre(0, 0));
  EXPECT_THAT(placed->notices, IsEmpty());
  EXPECT_EQ(placed->Describe(), "h1: servers 0-1, worker 0; h2: server 2, worker 1; h3: server 3");
  EXPECT_EQ(placed->HostOf(ProcessRole::kServer, 3), "h3");
}

TEST(Placement, AHostOfTwiceTheMemoryTakesTwiceAsMany) {
  const auto placed = Place({MakeHost("h1", 64), MakeHost("h2", 128)}, 6, 3, Job::CPU);
  ASSERT_TRUE(placed.ok()) << placed.status();
  EXPECT_THAT(placed->servers, ElementsAre("h1", "h1", "h2", "h2", "h2", "h2"));
  EXPECT_THAT(placed->workers, ElementsAre("h1", "h2", "h2"));
  EXPECT_THAT(placed->local_ranks, ElementsAre(0, 0, 1));
}

TEST(Placement, RolesAreObeyed) {
  Host server = MakeHost("a", 64), worker = MakeHost("b", 64);
  server.takes_workers = false;
  worker.takes_servers = false;
  const auto placed = Place({server, worker}, 2, 2, Job::CPU);
  ASSERT_TRUE(placed.ok()) << placed.status();
  EXPECT_THAT(placed->servers, ElementsAre("a", "a"));
  EXPECT_THAT(placed->workers, ElementsAre("b", "b"));
  EXPECT_EQ(Place({server}, 1, 1, Job::CPU).status(),
            absl::FailedPreconditionError("no host takes workers"));
  EXPECT_EQ(Place({worker}, 1, 1, Job::CPU).status(),
            absl::FailedPreconditionError("no host takes servers"));
}

TEST(Placement, OneWorkerAGpuAndMoreWithANotice) {
  const std::vector<Host> hosts = {MakeHost("h1", 512, 1), MakeHost("h2", 64, 2),
                                   MakeHost("h3", 1024)};
  const auto fits = Place(hosts, 1, 3, Job::AUTO);
  ASSERT_TRUE(fits.ok()) << fits.status();
  EXPECT_THAT(fits->workers, ElementsAre("h1", "h2", "h2"));
  EXPECT_THAT(fits->notices, IsEmpty());
  const auto more = Place(hosts, 1, 4, Job::CUDA);
  ASSERT_TRUE(more.ok()) << more.status();
  EXPECT_THAT(more->workers, ElementsAre("h1", "h2", "h2", "h2"));
  EXPECT_THAT(more->local_ranks, ElementsAre(0, 0, 1, 2));
  EXPECT_THAT(more->notices, ElementsAre("h2 runs 3 workers on 2 GPUs"));
  // The CPU's workers go by memory.
  EXPECT_THAT(Place(hosts, 1, 1, Job::CPU)->workers, ElementsAre("h3"));
  EXPECT_EQ(Place({MakeHost("h3", 1024)}, 1, 1, Job::CUDA).status(),
            absl::FailedPreconditionError("no host that takes workers has a GPU"));
}

TEST(Placement, NoHostIsOverloadedWhileAnotherHasRoom) {
  const uint64_t seed = TestSeed();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 300; ++round) {
    std::vector<Host> hosts;
    uint32_t gpus = 0;
    const size_t num_hosts = 1 + random() % 9;
    for (size_t i = 0; i < num_hosts; ++i) {
      hosts.push_back(MakeHost(absl::StrCat("h", i), random() % 1000, random() % 9));
      gpus += hosts.back().gpus;
    }
    if (gpus == 0) continue;
    const size_t num_workers = 1 + random() % (2 * gpus), num_servers = 1 + random() % 64;
    const auto placed = Place(hosts, num_servers, num_workers, Job::AUTO);
    ASSERT_TRUE(placed.ok()) << placed.status();
    EXPECT_EQ(placed->servers.size(), num_servers);
    EXPECT_EQ(placed->workers.size(), num_workers);
    std::map<std::string, uint32_t> taken;
    for (size_t i = 0; i < num_workers; ++i) {
      EXPECT_EQ(placed->local_ranks[i], taken[placed->workers[i]]++);
    }
    for (const Host& host : hosts) {
      if (num_workers <= gpus) {
        EXPECT_LE(taken[host.name], host.gpus);
      }
    }
    EXPECT_EQ(placed->notices.empty(), num_workers <= gpus);
    std::shuffle(hosts.begin(), hosts.end(), random);
    EXPECT_EQ(Place(hosts, num_servers, num_workers, Job::AUTO)->Describe(), placed->Describe());
  }
}

}  // namespace
}  // namespace thermocline
