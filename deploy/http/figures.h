// Which numbers of the stats of servers and workers are figures of the job's metrics: their names,
// kinds and help texts. A number of a message that is in neither table is an error, which the
// library's test finds.
#ifndef THERMOCLINE_DEPLOY_HTTP_FIGURES_H_
#define THERMOCLINE_DEPLOY_HTTP_FIGURES_H_

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace thermocline {

enum class FigureKind : uint8_t {
  kGauge,
  kCounter,    // It never falls while its process lives.
  kHistogram,  // A LatencyStats.
};

struct Figure {
  absl::string_view message;  // "ServerStats"; stages: "ServerStats.stages"
  absl::string_view field;
  FigureKind kind;
  absl::string_view name;  // "thermocline_server_pulls_held_total"
  absl::string_view help;  // A whole sentence.
  double offset = 0;       // It is added to the field's value.
};

// All figures of numeric fields, in the order in which /metrics has them.
absl::Span<const Figure> AllFigures();

// A field of the stats that is no figure by itself, and why.
struct LeftOut {
  absl::string_view message;
  absl::string_view field;
  absl::string_view why;
};
absl::Span<const LeftOut> FieldsLeftOut();

// The figures of a message's fields. `in`: the field whose message it is, which matters for stages
// alone; null: it stands alone.
struct FieldFigure {
  const google::protobuf::FieldDescriptor* field;
  const Figure* figure;
};
const std::vector<FieldFigure>& FiguresOf(const google::protobuf::Descriptor* descriptor,
                                          const google::protobuf::FieldDescriptor* in);

// The value of a singular number or bool of `message`.
double NumberOf(const google::protobuf::Message& message,
                const google::protobuf::FieldDescriptor* field);

// Adds each counter of `from`, also of the messages in it, to that of `to`, which is of the same
// type. Lists of messages are joined by their entries' name ("name", "method" or "stage").
// Histograms are counters, also where `from` itself is one, and tables keep their role. All other
// fields of `to` stay as they are.
void AddCounters(const google::protobuf::Message& from, google::protobuf::Message* to);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_HTTP_FIGURES_H_
