// A snapshot of a job in the text format of Prometheus.
#ifndef THERMOCLINE_DEPLOY_HTTP_METRICS_TEXT_H_
#define THERMOCLINE_DEPLOY_HTTP_METRICS_TEXT_H_

#include <prometheus/metric_family.h>

#include <string>
#include <vector>

#include "proto/monitor.pb.h"

namespace thermocline {

// All metrics of the job, each by its name once, in the order of AllFigures (figures.h), then those
// that are computed from several fields. Processes have the labels job, role, index and host;
// tables and histograms are summed over all servers, but for steps. A job of 1,024 servers, 64
// workers and 26 tables has less than 100,000 series.
std::vector<prometheus::MetricFamily> MetricsOf(const std::string& job,
                                                const MonitorSnapshot& snapshot);

// The answer to GET /metrics.
std::string MetricsText(const std::string& job, const MonitorSnapshot& snapshot);

// The table of metrics in docs/monitoring.md: a line of Markdown for each name.
std::string MetricsTable();

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_HTTP_METRICS_TEXT_H_
