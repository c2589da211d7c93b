// Agents and the controller's table in one thread, from a seed, over links that lose, double, delay
// and reorder messages, also in one direction only.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "deploy/nodes/node_agent.h"
#include "deploy/nodes/node_table.h"
#include "tests/testing/test_seed.h"

namespace thermocline {
namespace {

constexpr absl::Duration kLease = absl::Seconds(2);
constexpr absl::Duration kHostTimeout = absl::Seconds(3);
constexpr absl::Duration kTick = absl::Milliseconds(20);
constexpr absl::Duration kHeartbeat = absl::Milliseconds(400);
constexpr absl::Duration kSignPeriod = absl::Milliseconds(700);
constexpr int kHosts = 3;

std::string Text(const NodeProcess& id) {
  return absl::StrCat(id.role(), "/", id.index(), "/", id.generation(), "/", id.incarnation());
}

class AgentTrace {
 public:
  explicit AgentTrace(uint64_t seed)
      : random_(seed),
        table_({[] {
                  NodeOrder order;
                  order.set_job("job");
                  order.set_lease_ms(absl::ToInt64Milliseconds(kLease));
                  return order;
                }(),
                "build", kHostTimeout, kHosts,
                [this](const std::string& request, ProcessRole, const std::string&) {
                  return absl::StrCat(request, " signed ", ++signatures_);
                },
                kSignPeriod}) {
    for (int i = 0; i < kHosts; ++i) hosts_.push_back(std::make_unique<VirtualHost>(this, i));
    table_.BeginGeneration(++generation_);
  }

  // With trouble, then without, until all is as it is wanted.
  void Run() {
    for (int round = 0; round < 15; ++round) {
      for (auto& host : hosts_) {
        host->up = Link{Chance(0.2) ? 1.0 : Share() * 0.4, Share() * 0.3};
        host->down = Link{Chance(0.2) ? 1.0 : Share() * 0.4, Share() * 0.3};
      }
      for (int i = 0; i < 100 && !testing::Test::HasFatalFailure(); ++i) Step(/*disturbed=*/true);
    }
    for (auto& host : hosts_) host->up = host->down = Link();
    table_.Stop(ProcessRole::kServer, absl::ZeroDuration());
    table_.Stop(ProcessRole::kWorker, absl::ZeroDuration());
    for (int i = 0; i < 1000; ++i) Step(/*disturbed=*/false);
    EXPECT_TRUE(table_.AllGone(ProcessRole::kServer) && table_.AllGone(ProcessRole::kWorker));
    for (auto& host : hosts_) EXPECT_EQ(host->agent.running(), 0u);
    EXPECT_EQ(hosts_up_.size(), static_cast<size_t>(kHosts));
  }

 private:
  struct Link {
    double lost = 0, doubled = 0;
  };
  struct VirtualHost {
    VirtualHost(AgentTrace* trace, int index)
        : agent(Hello(index), [trace] { return ++trace->nonces_; }) {
      name = Hello(index).host();
    }
    static NodeHello Hello(int index) {
      NodeHello hello;
      hello.set_protocol_version(kNodeProtocolVersion);
      hello.set_host(absl::StrCat("h", index));
      hello.set_build("build");
      return hello;
    }

    std::string name;
    NodeAgent agent;
    Link up, down;
    std::map<std::string, NodeProcess> running;
    absl::Duration reported_at = -absl::InfiniteDuration();
    // When the newest heartbeat that has arrived was sent, by its nonce.
    std::map<uint64_t, absl::Duration> heard;
    std::map<std::pair<uint64_t, uint64_t>, absl::Duration> sent;
  };
  template <typename Message>
  using Mail = std::multimap<absl::Duration, std::pair<VirtualHost*, Message>>;

  double Share() { return std::uniform_real_distribution<double>(0, 1)(random_); }
  bool Chance(double share) { return Share() < share; }

  template <typename Message>
  void Post(const Link& link, VirtualHost* host, const Message& message, Mail<Message>* mail) {
    if (Chance(link.lost)) return;
    const int copies = Chance(link.doubled) ? 2 : 1;
    for (int i = 0; i < copies; ++i) {
      mail->emplace(now_ + absl::Milliseconds(1 + 300 * Share() * Share()),
                    std::pair(host, message));
    }
  }

  void Step(bool disturbed) {
    now_ += kTick;
    while (!reports_.empty() && reports_.begin()->first <= now_) TakeReport();
    while (!orders_.empty() && orders_.begin()->first <= now_) {
      const auto [host, order] = orders_.begin()->second;
      orders_.erase(orders_.begin());
      host->agent.OnOrder(now_, order);
    }
    table_.OnTick(now_);
    TakeEvents();
    if (disturbed) Disturb();
    for (const std::string& name : table_.TakeChanged()) {
      for (auto& host : hosts_) {
        if (host->name == name) Answer(host.get());
      }
    }
    for (auto& host : hosts_) Work(host.get());
  }
  void TakeReport() {
    const auto [host, report] = reports_.begin()->second;
    reports_.erase(reports_.begin());
    EXPECT_TRUE(table_.OnReport(now_, report).ok());
    absl::Duration& heard = host->heard[report.nonce()];
    heard = std::max(heard, host->sent[{report.nonce(), report.heartbeat()}]);
    Post(host->down, host, table_.OrderFor(host->name, report.nonce()), &orders_);
  }
  void Answer(VirtualHost* host) {
    if (!host->agent.MayReport()) return;
    Post(host->down, host, table_.OrderFor(host->name, host->agent.nonce()), &orders_);
  }

  // The controller's job.
  void TakeEvents() {
    // What rank 0 reports arrives in order, once, and before its end.
    read_[rank_0_] += table_.TakeMetrics();
    EXPECT_EQ(written_[rank_0_].rfind(read_[rank_0_], 0), 0u);
    EXPECT_THAT(table_.TakeNotices(), testing::IsEmpty());
    for (const JobEvent& event : table_.TakeEvents()) {
      if (const auto* up = std::get_if<event::HostUp>(&event)) {
        EXPECT_TRUE(hosts_up_.insert(up->host.name).second);
      } else if (const auto* lost = std::get_if<event::HostLost>(&event)) {
        EXPECT_EQ(hosts_up_.erase(lost->name), 1u);
      } else if (const auto* started = std::get_if<event::ProcessStarted>(&event)) {
        EXPECT_TRUE(seen_up_.insert(Text(ToNodeProcess(started->id))).second);
      } else if (const auto* ended = std::get_if<event::ProcessEnded>(&event)) {
        const std::string text = Text(ToNodeProcess(ended->id));
        EXPECT_TRUE(seen_ended_.insert(text).second);
        if (text == rank_0_ && ended->end.exit_code == 0) {
          EXPECT_EQ(read_[text], written_[text]);
        }
      }
    }
  }
  void BeginGeneration() {
    is_stopping_ = false;
    rank_0_.clear();
    table_.BeginGeneration(++generation_);
  }
  void LookWhetherAllHaveEnded() {
    if (!is_stopping_ || !table_.AllGone(ProcessRole::kServer) ||
        !table_.AllGone(ProcessRole::kWorker)) {
      return;
    }
    for (auto& host : hosts_) {
      if (hosts_up_.count(host->name) == 0) continue;
      for (const auto& [text, id] : host->running) EXPECT_NE(id.generation(), generation_) << text;
    }
    BeginGeneration();
  }
  void Disturb() {
    LookWhetherAllHaveEnded();
    if (!is_stopping_ && Chance(0.05) && !hosts_up_.empty()) {
      action::StartProcess start;
      start.id = {Chance(0.5) ? ProcessRole::kServer : ProcessRole::kWorker,
                  static_cast<uint32_t>(Share() * kHosts), generation_, ++incarnations_};
      start.host = *std::next(hosts_up_.begin(), static_cast<int>(Share() * hosts_up_.size()));
      if (start.id.role == ProcessRole::kWorker && start.id.index == 0) {
        if (!rank_0_.empty()) return;  // One in a generation.
        rank_0_ = Text(ToNodeProcess(start.id));
      }
      table_.Start(start);
    }
    if (Chance(0.01)) table_.Stop(ProcessRole::kServer, absl::Milliseconds(200));
    // The next generation of this controller waits until all have ended, that of another does not.
    if (Chance(0.01)) is_stopping_ = true;
    if (is_stopping_) {
      table_.Stop(ProcessRole::kServer, absl::Milliseconds(200));
      table_.Stop(ProcessRole::kWorker, absl::Milliseconds(200));
    }
    if (Chance(0.003)) BeginGeneration();
  }

  // A host's processes.
  void Work(VirtualHost* host) {
    NodeAgent& agent = host->agent;
    agent.OnTick(now_);
    for (auto actions = agent.TakeActions(); !actions.empty(); actions = agent.TakeActions()) {
      for (const NodeAction& action : actions) Do(host, action);
    }
    for (auto each = host->running.begin(); each != host->running.end();) {
      if (Chance(0.05)) agent.OnServes(each->second, "address", "log");
      const NodeProcess id = each->second;
      if (id.role() == NodeProcess::WORKER && id.index() == 0 && Chance(0.5)) {
        const std::string data = absl::StrCat(++lines_, ";");
        written_[Text(id)] += data;
        agent.OnMetrics(id, data);
      }
      if (!Chance(0.01)) {
        ++each;
        continue;
      }
      each = host->running.erase(each);
      End(host, id, /*exit_code=*/0);
    }
    // Nothing runs for longer than the lease of the newest heartbeat that has arrived.
    if (!host->running.empty()) {
      ASSERT_TRUE(host->heard.count(agent.nonce()) != 0) << host->name;
      ASSERT_LT(now_, host->heard[agent.nonce()] + kLease) << host->name;
    }
    if (!agent.MayReport() || now_ - host->reported_at < (agent.HasNews() ? kTick : kHeartbeat)) {
      return;
    }
    host->reported_at = now_;
    const NodeReport report = agent.MakeReport(now_);
    host->sent[{report.nonce(), report.heartbeat()}] = now_;
    Post(host->up, host, report, &reports_);
  }
  void Do(VirtualHost* host, const NodeAction& action) {
    if (const auto* start = std::get_if<node_action::Start>(&action)) {
      const NodeProcess& id = start->process.id();
      const std::string& certificate = start->process.certificate();
      if (id.index() % 2 == 1 && certificate.empty()) {  // The others have files.
        EXPECT_TRUE(requested_.insert(Text(id)).second);
        host->agent.OnNeedsCertificate(id, Text(id));
        return;
      }
      EXPECT_EQ(certificate.rfind(id.index() % 2 == 1 ? Text(id) + " signed" : "", 0), 0u);
      EXPECT_TRUE(started_.insert(Text(id)).second) << Text(id) << " is started twice";
      for (const auto& [text, other] : host->running) {
        EXPECT_EQ(other.generation(), id.generation());
      }
      host->running[Text(id)] = id;
    } else if (const auto* renew = std::get_if<node_action::Renew>(&action)) {
      EXPECT_EQ(host->running.count(Text(renew->process.id())), 1u);
      EXPECT_EQ(renew->process.certificate().rfind(Text(renew->process.id()) + " signed", 0), 0u);
    } else if (const auto* signal = std::get_if<node_action::Signal>(&action)) {
      if (host->running.erase(Text(signal->id)) > 0) End(host, signal->id, /*exit_code=*/1);
    }
  }
  void End(VirtualHost* host, const NodeProcess& id, int exit_code) {
    ProcessEndReport end;
    end.set_has_exit_code(true);
    end.set_exit_code(exit_code);
    end.set_result("{\"steps\": 7}");
    host->agent.OnEnd(now_, id, end);
  }

  std::mt19937_64 random_;
  uint64_t nonces_ = 0, generation_ = 0, incarnations_ = 0, signatures_ = 0;
  absl::Duration now_;
  NodeTable table_;
  std::vector<std::unique_ptr<VirtualHost>> hosts_;
  Mail<NodeReport> reports_;
  Mail<NodeOrder> orders_;
  std::set<std::string> hosts_up_, requested_, started_, seen_up_, seen_ended_;
  bool is_stopping_ = false;
  std::string rank_0_;  // Rank 0 of this generation; "": none yet.
  std::map<std::string, std::string> written_, read_;
  uint64_t lines_ = 0;
};

TEST(NodeTrace, LostDoubledAndLateMessagesHarmNothing) {
  const uint64_t seed = TestSeed();
  for (uint64_t i = 0; i < 60 && !testing::Test::HasFailure(); ++i) {
    SCOPED_TRACE(absl::StrCat("trace ", i));
    AgentTrace(seed + i).Run();
  }
}

}  // namespace
}  // namespace thermocline
