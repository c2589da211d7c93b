// What a job costs as functions of its numbers of servers and workers: calls and bytes between
// them, the controller's work, and what it says to the nodes. Counted in the simulation of a
// cluster (the real servers' core, workers' sessions, agents and controller), so without any noise.
//
//   scale_benchmark [SERVERSxWORKERS ...]      default: 1x1 4x4 16x16 64x64 64x16 16x64
//
// A step takes 0.1 s. Rates are those between two lengths of the job; what both share is its start
// and end.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/simulation/sim_cluster.h"

namespace thermocline {
namespace {

constexpr int64_t kSteps[] = {10, 30};

ClusterResult Run(uint32_t servers, uint32_t workers, int64_t steps) {
  ClusterSetup setup;
  setup.seed = 1;
  setup.num_servers = servers;
  setup.num_workers = workers;
  setup.num_hosts = servers > workers ? servers : workers;
  setup.num_steps = steps;
  setup.every_steps = 5;
  setup.compute_us = 100'000;
  setup.troubles = 0;
  setup.keys_per_table = 64;
  setup.num_keys = 2'000;
  return RunCluster(setup);
}

int Main(int argc, char** argv) {
  std::vector<std::string> sizes(argv + 1, argv + argc);
  if (sizes.empty()) sizes = {"1x1", "4x4", "16x16", "64x64", "64x16", "16x64"};
  std::printf("%-8s %10s %10s %10s %10s | %10s %10s %10s %10s | %10s %10s\n", "S x W", "calls",
              "bytes", "calls/SW", "bytes/W", "events", "actions", "calls", "bytes", "events",
              "bytes");
  std::printf("%-8s %43s | %43s | %21s\n", "", "a step, between servers and workers",
              "a second of the controller, bytes with nodes", "to start and end");
  for (const std::string& size : sizes) {
    char* rest = nullptr;
    const auto servers = static_cast<uint32_t>(std::strtoul(size.c_str(), &rest, 10));
    const auto workers =
        static_cast<uint32_t>(*rest == 'x' ? std::strtoul(rest + 1, nullptr, 10) : 0);
    if (servers == 0 || workers == 0) {
      std::fprintf(stderr, "'%s' is not SERVERSxWORKERS\n", size.c_str());
      return 2;
    }
    const ClusterResult few = Run(servers, workers, kSteps[0]);
    const ClusterResult many = Run(servers, workers, kSteps[1]);
    for (const ClusterResult* result : {&few, &many}) {
      if (result->failures.empty()) continue;
      std::fprintf(stderr, "%s: %s\n", size.c_str(), result->failures[0].c_str());
      return 1;
    }
    const ClusterTraffic &a = few.traffic, &b = many.traffic;
    const double steps = static_cast<double>(kSteps[1] - kSteps[0]);
    const double seconds = static_cast<double>(many.micros - few.micros) / 1e6;
    const double short_seconds = static_cast<double>(few.micros) / 1e6;
    const auto step = [&](uint64_t x, uint64_t y) { return static_cast<double>(y - x) / steps; };
    const auto second = [&](uint64_t x, uint64_t y) {
      return static_cast<double>(y - x) / seconds;
    };
    const double calls = step(a.pulls + a.pushes, b.pulls + b.pushes);
    const double bytes = step(a.data_bytes, b.data_bytes);
    const double events = second(a.work.events, b.work.events);
    const uint64_t node_bytes[] = {a.order_bytes + a.report_bytes, b.order_bytes + b.report_bytes};
    const double said = second(node_bytes[0], node_bytes[1]);
    std::printf("%-8s %10.0f %10.0f %10.2f %10.0f | %10.1f %10.1f %10.1f %10.0f | %10.0f %10.0f\n",
                size.c_str(), calls, bytes, calls / servers / workers, bytes / workers, events,
                second(a.work.actions, b.work.actions), second(a.work.calls, b.work.calls), said,
                static_cast<double>(a.work.events) - events * short_seconds,
                static_cast<double>(node_bytes[0]) - said * short_seconds);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace thermocline

int main(int argc, char** argv) { return thermocline::Main(argc, argv); }
