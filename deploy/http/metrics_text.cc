#include "deploy/http/metrics_text.h"

#include <prometheus/text_serializer.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "deploy/http/figures.h"
#include "deploy/http/monitor_state.h"
#include "proto/checkpoint.pb.h"
#include "proto/parameter_server.pb.h"

namespace thermocline {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

// Metrics that are made of several fields.
constexpr Figure kComputed[] = {
    {"", "up", FigureKind::kGauge, "thermocline_up",
     "Whether (1) or not (0) the process answered the controller when it asked last; absent once "
     "it "
     "has ended as it should."},
    {"", "starts", FigureKind::kCounter, "thermocline_process_starts_total",
     "How often a process was started for the server or worker in this launch of the job."},
    {"", "answer", FigureKind::kGauge, "thermocline_process_answer_seconds",
     "How long the process took to answer the controller when it asked last."},
    {"", "device", FigureKind::kGauge, "thermocline_worker_info",
     "It is always 1; the label device says what the worker computes on."},
    {"", "log_full", FigureKind::kGauge, "thermocline_server_push_log_full",
     "Whether (1) or not (0) the server can't log pushes, since its disk is full."},
    {"", "request_s", FigureKind::kCounter, "thermocline_server_request_seconds_total",
     "How long the server has handled requests of the method."},
    {"", "accepted", FigureKind::kGauge, "thermocline_worker_accepted_steps",
     "How many steps of the worker all servers have accepted."},
};

const Figure& Computed(absl::string_view field) {
  return *std::find_if(std::begin(kComputed), std::end(kComputed),
                       [&](const Figure& figure) { return figure.field == field; });
}

MetricType TypeOf(FigureKind kind) {
  switch (kind) {
    case FigureKind::kGauge:
      return MetricType::Gauge;
    case FigureKind::kCounter:
      return MetricType::Counter;
    case FigureKind::kHistogram:
      return MetricType::Histogram;
  }
  return MetricType::Untyped;
}

ClientMetric::Histogram HistogramOf(const LatencyStats& latency) {
  ClientMetric::Histogram histogram;
  histogram.sample_count = latency.count();
  histogram.sample_sum = latency.mean_us() * static_cast<double>(latency.count()) * 1e-6;
  constexpr int kFirstPower = 7;  // The first bucket ends at 2^7 us.
  for (int i = 0; i < latency.buckets_size(); ++i) {
    histogram.bucket.push_back({latency.buckets(i), std::ldexp(1.0, kFirstPower + i) * 1e-6});
  }
  return histogram;
}

// Collects the series of a snapshot by the names of their metrics.
class Collector {
 public:
  explicit Collector(std::string job) : job_(std::move(job)) {
    for (const Figure& figure : AllFigures()) AddFamily(figure);
    for (const Figure& figure : kComputed) AddFamily(figure);
  }

  Labels OfJob() const { return {{"job", job_}}; }
  Labels Of(const MonitoredProcess& process) const {
    return {{"job", job_},
            {"role", process.role()},
            {"index", absl::StrCat(process.index())},
            {"host", process.host()}};
  }

  // From now on gauges are left out: what is added is of a process that does not answer, of which
  // the counters alone still hold.
  void set_counters_alone(bool alone) { counters_alone_ = alone; }

  void Add(const Figure& figure, Labels labels, double value) {
    if (counters_alone_ && figure.kind == FigureKind::kGauge) return;
    ClientMetric metric;
    metric.label = std::move(labels);
    metric.gauge.value = value;
    metric.counter.value = value;
    family(figure).metric.push_back(std::move(metric));
  }
  void AddHistogram(const Figure& figure, Labels labels, const LatencyStats& latency) {
    ClientMetric metric;
    metric.label = std::move(labels);
    metric.histogram = HistogramOf(latency);
    family(figure).metric.push_back(std::move(metric));
  }
  // The numbers of a message. A number whose presence is known and that is absent has no series.
  void AddNumbers(const Message& message, const FieldDescriptor* in, const Labels& labels) {
    const auto* const reflection = message.GetReflection();
    for (const auto& [field, figure] : FiguresOf(message.GetDescriptor(), in)) {
      if (field->is_repeated() || figure->kind == FigureKind::kHistogram) continue;
      if (field->has_presence() && !reflection->HasField(message, field)) continue;
      Add(*figure, labels, NumberOf(message, field) + figure->offset);
    }
  }

  // Returns the families that have series.
  std::vector<MetricFamily> Take() {
    std::vector<MetricFamily> taken;
    for (MetricFamily& each : families_) {
      if (!each.metric.empty()) taken.push_back(std::move(each));
    }
    return taken;
  }

 private:
  // Figures of two messages may share a name.
  void AddFamily(const Figure& figure) {
    const auto [place, is_new] = places_.try_emplace(std::string(figure.name), families_.size());
    if (is_new) {
      families_.push_back({place->first, std::string(figure.help), TypeOf(figure.kind), {}});
    }
  }
  MetricFamily& family(const Figure& figure) {
    return families_[places_.at(std::string(figure.name))];
  }

  const std::string job_;
  bool counters_alone_ = false;
  std::vector<MetricFamily> families_;
  std::map<std::string, size_t> places_;
};

Labels With(Labels labels, const char* name, std::string value) {
  labels.push_back({name, std::move(value)});
  return labels;
}

const Figure& FigureOf(const google::protobuf::Descriptor* descriptor, const char* field) {
  const auto& figures = FiguresOf(descriptor, nullptr);
  return *std::find_if(figures.begin(), figures.end(), [&](const FieldFigure& each) {
            return each.field->name() == field;
          })->figure;
}

const FieldDescriptor* FieldNamed(const Message& message, const char* name) {
  return message.GetDescriptor()->FindFieldByName(name);
}

// Sums over all servers.
struct ServerSums {
  std::map<std::string, TableStats> tables;      // By name.
  std::map<std::string, LatencyStats> requests;  // By method.
  LatencyStats holds;
  std::map<int, int64_t> accepted;  // The least of all servers, by rank.
};

// Parts of one table on several servers.
void AddTable(const TableStats& part, TableStats* sum) {
  AddCounters(part, sum);
  for (const auto& [field, figure] : FiguresOf(TableStats::descriptor(), nullptr)) {
    if (figure->kind != FigureKind::kGauge) continue;
    const auto* const reflection = sum->GetReflection();
    reflection->SetUInt64(sum, field,
                          reflection->GetUInt64(part, field) + reflection->GetUInt64(*sum, field));
  }
}

void AddServer(const MonitoredProcess& process, Collector* collector, ServerSums* sums) {
  const ServerStats stats = FoldedServer(process);
  const Labels labels = collector->Of(process);
  collector->AddNumbers(stats, nullptr, labels);
  collector->Add(Computed("log_full"), labels, stats.push_log_full().empty() ? 0 : 1);
  for (const StageStats& stage : stats.stages()) {
    collector->AddNumbers(stage, FieldNamed(stats, "stages"), With(labels, "stage", stage.stage()));
  }
  for (const RpcStats& method : stats.rpcs()) {
    const Labels of_method = With(labels, "method", method.method());
    collector->AddNumbers(method, nullptr, of_method);
    const LatencyStats& latency = method.latency();
    collector->Add(Computed("request_s"), of_method,
                   latency.mean_us() * static_cast<double>(latency.count()) * 1e-6);
    AddCounters(latency, &sums->requests[method.method()]);
  }
  AddCounters(stats.hold_time(), &sums->holds);
  for (const TableStats& table : stats.tables()) {
    // The tensors of the dense parameters share a line.
    const bool is_dense = table.role() != TableSpec::SPARSE;
    AddTable(table, &sums->tables[is_dense ? "dense parameters" : table.name()]);
  }
  for (int rank = 0; rank < stats.accepted_through_size(); ++rank) {
    const int64_t steps = stats.accepted_through(rank) + 1;
    const auto [place, is_new] = sums->accepted.try_emplace(rank, steps);
    if (!is_new) place->second = std::min(place->second, steps);
  }
}

void AddSums(const ServerSums& sums, Collector* collector) {
  for (const auto& [name, table] : sums.tables) {
    collector->AddNumbers(table, nullptr, With(collector->OfJob(), "table", name));
  }
  for (const auto& [method, latency] : sums.requests) {
    collector->AddHistogram(FigureOf(RpcStats::descriptor(), "latency"),
                            With(collector->OfJob(), "method", method), latency);
  }
  collector->AddHistogram(FigureOf(ServerStats::descriptor(), "hold_time"), collector->OfJob(),
                          sums.holds);
}

// The longest wait of each kind; 0 where there is none.
void AddWaits(const WorkerStats& stats, const Labels& labels, Collector* collector) {
  std::map<int, double> longest;
  for (int kind = WorkerWait::Kind_MIN; kind <= WorkerWait::Kind_MAX; ++kind) longest[kind] = 0;
  for (const WorkerWait& wait : stats.waits()) {
    double& kept = longest[wait.kind()];
    kept = std::max(kept, wait.seconds());
  }
  const Figure& figure = FigureOf(WorkerWait::descriptor(), "seconds");
  for (const auto& [kind, seconds] : longest) {
    if (!WorkerWait::Kind_IsValid(kind)) continue;  // It is of a newer program.
    const auto name = WorkerWait::Kind_Name(static_cast<WorkerWait::Kind>(kind));
    collector->Add(figure, With(labels, "kind", absl::AsciiStrToLower(name)), seconds);
  }
}

void AddWorker(const MonitoredProcess& process, Collector* collector,
               std::map<int, double>* awaited) {
  const WorkerStats stats = FoldedWorker(process);
  const Labels labels = collector->Of(process);
  collector->AddNumbers(stats, nullptr, labels);
  collector->AddHistogram(FigureOf(WorkerStats::descriptor(), "step_time"), labels,
                          stats.step_time());
  for (const StageStats& stage : stats.stages()) {
    collector->AddNumbers(stage, FieldNamed(stats, "stages"), With(labels, "stage", stage.stage()));
  }
  for (const TaskStats& task : stats.task_losses()) {
    collector->AddNumbers(task, nullptr, With(labels, "task", task.task()));
  }
  if (!stats.device().empty()) {
    collector->Add(Computed("device"), With(labels, "device", stats.device()), 1);
  }
  collector->AddNumbers(stats.phase(), nullptr, labels);
  AddWaits(stats, labels, collector);
  if (stats.has_cache()) collector->AddNumbers(stats.cache(), nullptr, labels);
  if (stats.has_hot()) collector->AddNumbers(stats.hot(), nullptr, labels);
  if (!stats.has_exchange()) return;
  collector->AddNumbers(stats.exchange(), nullptr, labels);
  for (const ExchangeStats::PhaseStats& phase : stats.exchange().phases()) {
    collector->AddNumbers(phase, nullptr, With(labels, "phase", phase.name()));
  }
  for (int rank = 0; rank < stats.exchange().wait_for_rank_s_size(); ++rank) {
    (*awaited)[rank] += stats.exchange().wait_for_rank_s(rank);
  }
}

// What other processes say of each worker.
void AddOfWorkers(const MonitorSnapshot& snapshot, const ServerSums& sums,
                  const std::map<int, double>& awaited, Collector* collector) {
  for (const MonitoredProcess& process : snapshot.processes()) {
    if (process.role() != "worker") continue;
    const int rank = static_cast<int>(process.index());
    if (const auto found = sums.accepted.find(rank); found != sums.accepted.end()) {
      collector->Add(Computed("accepted"), collector->Of(process),
                     static_cast<double>(found->second));
    }
    if (const auto found = awaited.find(rank); found != awaited.end()) {
      collector->Add(FigureOf(ExchangeStats::descriptor(), "wait_for_rank_s"),
                     collector->Of(process), found->second);
    }
  }
}

}  // namespace

std::vector<MetricFamily> MetricsOf(const std::string& job, const MonitorSnapshot& snapshot) {
  Collector collector(job);
  collector.AddNumbers(snapshot.job(), nullptr, collector.OfJob());
  for (const TaskFigures& task : snapshot.job().tasks()) {
    collector.AddNumbers(task, nullptr, With(collector.OfJob(), "task", task.task()));
  }
  ServerSums sums;
  std::map<int, double> awaited;  // Seconds, by rank.
  bool has_servers = false;
  for (const MonitoredProcess& process : snapshot.processes()) {
    const Labels labels = collector.Of(process);
    const bool answers = process.error().empty();
    if (!process.has_ended()) collector.Add(Computed("up"), labels, answers ? 1 : 0);
    collector.Add(Computed("starts"), labels, static_cast<double>(process.starts()));
    collector.set_counters_alone(!answers);
    collector.Add(Computed("answer"), labels, process.answer_s());
    if (process.has_server()) AddServer(process, &collector, &sums);
    if (process.has_worker()) AddWorker(process, &collector, &awaited);
    collector.set_counters_alone(false);
    has_servers |= process.has_server();
  }
  if (has_servers) AddSums(sums, &collector);
  AddOfWorkers(snapshot, sums, awaited, &collector);
  return collector.Take();
}

std::string MetricsText(const std::string& job, const MonitorSnapshot& snapshot) {
  return prometheus::TextSerializer().Serialize(MetricsOf(job, snapshot));
}

std::string MetricsTable() {
  std::string table = "| metric | kind | what it says |\n|---|---|---|\n";
  std::map<absl::string_view, bool> seen;
  const auto add = [&](const Figure& figure) {
    if (!seen.try_emplace(figure.name, true).second) return;
    const char* const kind = figure.kind == FigureKind::kGauge     ? "gauge"
                             : figure.kind == FigureKind::kCounter ? "counter"
                                                                   : "histogram";
    absl::StrAppend(&table, "| `", figure.name, "` | ", kind, " | ", figure.help, " |\n");
  };
  for (const Figure& figure : AllFigures()) add(figure);
  for (const Figure& figure : kComputed) add(figure);
  return table;
}

}  // namespace thermocline
