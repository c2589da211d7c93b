#include "worker/model/testing/reference_model.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace thermocline {
namespace {

using Doubles = ReferenceModel::Doubles;
using Vectors = ReferenceModel::Vectors;

Doubles Joined(const Vectors& vectors) {
  Doubles joined;
  for (const Doubles& vector : vectors) joined.insert(joined.end(), vector.begin(), vector.end());
  return joined;
}

double Dot(const Doubles& a, const Doubles& b) {
  double dot = 0;
  for (size_t i = 0; i < a.size(); ++i) dot += a[i] * b[i];
  return dot;
}

void SoftmaxOf(Doubles* x) {
  double sum = 0;
  for (double& v : *x) sum += v = std::exp(v);
  for (double& v : *x) v /= sum;
}

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// The numbers cut in vectors of the widths of `like`.
Vectors CutAs(const Vectors& like, const Doubles& numbers) {
  Vectors cut;
  auto next = numbers.begin();
  for (const Doubles& vector : like) {
    cut.emplace_back(next, next + static_cast<int64_t>(vector.size()));
    next += static_cast<int64_t>(vector.size());
  }
  return cut;
}

}  // namespace

bool ReferenceModel::Has(const std::string& tensor) const {
  return std::any_of(spec_.tensors.begin(), spec_.tensors.end(),
                     [&](const DenseTensor& t) { return t.name == tensor; });
}

double ReferenceModel::Parameter(const Sample& sample, const std::string& tensor, int row,
                                 int column) const {
  for (const DenseTensor& t : spec_.tensors) {
    if (t.name == tensor) {
      return sample.arena[layout_.OffsetOf(t) + int64_t{row} * t.cols() + column];
    }
  }
  CHECK(false);
  return 0;
}

Doubles ReferenceModel::Linear(const Sample& sample, const Doubles& x, const std::string& weight,
                               const std::string& bias) const {
  int out = 0;
  for (const DenseTensor& t : spec_.tensors) out = t.name == weight ? t.out : out;
  CHECK_GT(out, 0);
  Doubles y(out);
  for (int o = 0; o < out; ++o) {
    if (Has(bias)) y[o] = Parameter(sample, bias, 0, o);
    for (size_t k = 0; k < x.size(); ++k) {
      y[o] += x[k] * Parameter(sample, weight, static_cast<int>(k), o);
    }
  }
  return y;
}

Doubles ReferenceModel::PooledRow(const Sample& sample, int f) const {
  const int table = shape_.tables[f];
  const size_t floats = sample.rows[table].size() / shape_.unique_keys;
  Doubles pooled(floats);
  const int first = batch_.offsets[f][sample.index], last = batch_.offsets[f][sample.index + 1];
  for (int j = first; j < last; ++j) {
    for (size_t d = 0; d < floats; ++d) {
      pooled[d] += sample.rows[table][batch_.row_indices[f][j] * floats + d];
    }
  }
  if (shape_.poolings[f] == PoolingMode::kMean && last > first) {
    for (double& x : pooled) x /= last - first;
  }
  return pooled;
}

Doubles ReferenceModel::RowOfStep(const Sample& sample, int f) const {
  const int table = shape_.tables[f];
  const size_t floats = sample.rows[table].size() / shape_.unique_keys;
  const int lookup = batch_.offsets[f][sample.index] + sample.step;
  const auto row =
      sample.rows[table].begin() + batch_.row_indices[f][lookup] * static_cast<int64_t>(floats);
  return {row, row + static_cast<int64_t>(floats)};
}

int ReferenceModel::StepsOf(const Sample& sample, const StepSequence& sequence) const {
  const std::vector<int32_t>& offsets = batch_.offsets[sequence.first_feature];
  return offsets[sample.index + 1] - offsets[sample.index];
}

const StepSequence* ReferenceModel::SequenceOf(const Sample& sample,
                                               const std::string& name) const {
  for (const StepSequence& sequence : spec_.inputs.sequences) {
    if (sequence.name == name) return &sequence;
  }
  if (sample.steps.count(name) == 0) return nullptr;
  for (const Layer& layer : job_.layer()) {
    if (layer.name() == name) return SequenceOf(sample, layer);
  }
  return nullptr;
}

const StepSequence* ReferenceModel::SequenceOf(const Sample& sample, const Layer& layer) const {
  const StepSequence* found = nullptr;
  for (const auto& names : {layer.input(), layer.feature_gate().by(), layer.gate().by()}) {
    for (const std::string& name : names) {
      const StepSequence* const sequence = SequenceOf(sample, name);
      if (sequence != nullptr) found = sequence;
    }
  }
  return found;
}

Vectors ReferenceModel::InputOf(const Sample& sample, const std::string& name) const {
  const auto steps = sample.steps.find(name);
  if (steps != sample.steps.end()) return steps->second[sample.step];
  for (const StepSequence& sequence : spec_.inputs.sequences) {
    if (sequence.name != name) continue;
    Vectors vectors;
    for (int i = 0; i < sequence.features; ++i) {
      vectors.push_back(RowOfStep(sample, sequence.first_feature + i));
    }
    return vectors;
  }
  const auto layer = sample.layers.find(name);
  if (layer != sample.layers.end()) return layer->second;
  if (name == "numeric") {
    const auto begin = batch_.numeric.begin() + int64_t{sample.index} * spec_.inputs.numeric;
    return {Doubles(begin, begin + spec_.inputs.numeric)};
  }
  for (const FeatureGroup& group : job_.group()) {
    if (group.name() == name) return InputsOf(sample, group.feature());
  }
  Vectors vectors;
  for (int f = 0; f < spec_.inputs.num_vectors(); ++f) {
    const EmbeddedFeature& feature = spec_.inputs.features[f];
    if (feature.sequence != kSamples) continue;
    if (name != "categorical" && name != "fields" && name != feature.name) continue;
    vectors.push_back(PooledRow(sample, f));
    vectors.back().resize(feature.dim);
  }
  return vectors;
}

Vectors ReferenceModel::InputsOf(
    const Sample& sample, const google::protobuf::RepeatedPtrField<std::string>& names) const {
  Vectors vectors;
  for (const std::string& name : names) {
    const Vectors of_name = InputOf(sample, name);
    vectors.insert(vectors.end(), of_name.begin(), of_name.end());
  }
  return vectors;
}

Doubles ReferenceModel::LayerNorm(const Sample& sample, const std::string& tensors,
                                  Doubles x) const {
  const int width = static_cast<int>(x.size());
  double mean = 0, variance = 0;
  for (const double v : x) mean += v / width;
  for (const double v : x) variance += (v - mean) * (v - mean) / width;
  for (int c = 0; c < width; ++c) {
    x[c] =
        (x[c] - mean) / std::sqrt(variance + 1e-5) * Parameter(sample, tensors + ".weight", 0, c) +
        Parameter(sample, tensors + ".bias", 0, c);
  }
  return x;
}

Doubles ReferenceModel::MlpOf(const Sample& sample, const std::string& name, const Layer::Mlp& mlp,
                              Doubles x) const {
  for (int i = 0; i < mlp.units_size(); ++i) {
    const std::string prefix = absl::StrCat(name, ".", i, ".");
    const bool is_last = i + 1 == mlp.units_size() && mlp.has_last();
    const Layer::Activation activation = is_last ? mlp.last() : mlp.activation();
    x = Linear(sample, x, prefix + "weight", prefix + "bias");
    const int width = static_cast<int>(x.size());
    if (mlp.layer_norm() && !(is_last && activation == Layer::LINEAR)) {
      x = LayerNorm(sample, prefix + "norm", x);
    }
    for (int c = 0; c < width; ++c) {
      double& v = x[c];
      if (activation == Layer::RELU) v = std::max(v, 0.0);
      if (activation == Layer::SIGMOID) v = Sigmoid(v);
      if (activation == Layer::TANH) v = std::tanh(v);
      if (activation == Layer::PRELU && v < 0) v *= Parameter(sample, prefix + "slope", 0, c);
    }
  }
  return x;
}

Doubles ReferenceModel::CrossOf(const Sample& sample, const Layer& layer, const Doubles& x0) const {
  Doubles x = x0;
  for (uint32_t i = 0; i < layer.cross().layers(); ++i) {
    const std::string prefix = absl::StrCat(layer.name(), ".", i, ".");
    const Doubles u =
        layer.cross().rank() > 0
            ? Linear(sample, Linear(sample, x, prefix + "down", ""), prefix + "up", prefix + "bias")
            : Linear(sample, x, prefix + "weight", prefix + "bias");
    for (size_t c = 0; c < x.size(); ++c) x[c] += x0[c] * u[c];
  }
  return x;
}

double ReferenceModel::BilinearOf(const Sample& sample, const Layer& layer) const {
  const std::string& name = layer.name();
  const Doubles x = Joined(InputOf(sample, layer.input(0)));
  const Doubles y = Joined(InputOf(sample, layer.input(1)));
  const auto heads = static_cast<int64_t>(std::max(layer.bilinear().heads(), 1u));
  double sum = Linear(sample, x, name + ".first.weight", "")[0] +
               Linear(sample, y, name + ".second.weight", name + ".bias")[0];
  const int64_t in = static_cast<int64_t>(x.size()) / heads;
  const int64_t out = static_cast<int64_t>(y.size()) / heads;
  for (int64_t h = 0; h < heads; ++h) {
    const Doubles part(x.begin() + h * in, x.begin() + (h + 1) * in);
    const Doubles other(y.begin() + h * out, y.begin() + (h + 1) * out);
    sum += Dot(Linear(sample, part, absl::StrCat(name, ".", h, ".weight"), ""), other);
  }
  return sum;
}

double ReferenceModel::FirstOrderOf(const Sample& sample, const Layer& layer) const {
  double sum = 0;
  for (const std::string& name : layer.input()) {
    if (name == "numeric") {
      sum += Linear(sample, InputOf(sample, name)[0], layer.name() + ".weight", "")[0];
    }
    for (int f = 0; f < spec_.inputs.num_vectors(); ++f) {
      if (name != "categorical" && name != spec_.inputs.features[f].name) continue;
      sum += PooledRow(sample, f).back();
    }
  }
  return sum;
}

Vectors ReferenceModel::GateOf(const Sample& sample, const Layer& layer, const Vectors& x) const {
  Doubles context = {1};
  if (layer.feature_gate().by_size() > 0) {
    context = Joined(InputsOf(sample, layer.feature_gate().by()));
  }
  for (int i = 0; i <= layer.feature_gate().units_size(); ++i) {
    const std::string prefix = absl::StrCat(layer.name(), ".", i, ".");
    context = Linear(sample, context, prefix + "weight", prefix + "bias");
    if (i == layer.feature_gate().units_size()) break;
    for (double& v : context) v = std::max(v, 0.0);
  }
  Doubles gated = Joined(x);
  for (size_t c = 0; c < gated.size(); ++c) gated[c] *= 2 * Sigmoid(context[c]);
  return CutAs(x, gated);
}

Doubles ReferenceModel::MixOf(const Sample& sample, const Layer& layer, const Vectors& x) const {
  Doubles shares = Linear(sample, Joined(InputsOf(sample, layer.gate().by())),
                          layer.name() + ".weight", layer.name() + ".bias");
  SoftmaxOf(&shares);
  Doubles mixed(x[0].size());
  for (size_t v = 0; v < x.size(); ++v) {
    for (size_t c = 0; c < mixed.size(); ++c) mixed[c] += shares[v] * x[v][c];
  }
  return mixed;
}

std::vector<Doubles> ReferenceModel::StepsRead(const Sample& sample, const Layer& layer,
                                               int steps) const {
  std::vector<Doubles> read;
  Sample at = sample;
  for (at.step = 0; at.step < steps; ++at.step) read.push_back(Joined(InputsOf(at, layer.input())));
  return read;
}

Vectors ReferenceModel::AttentionOf(const Sample& sample, const Layer& layer, int steps) const {
  const Layer::Attention& attention = layer.attention();
  const Doubles query = Joined(InputsOf(sample, attention.query()));
  const std::vector<Doubles> keys = StepsRead(sample, layer, steps);
  Doubles scores;
  for (const Doubles& key : keys) {
    if (attention.score() == Layer::Attention::MLP) {
      Vectors parts = {query, key, query, query};
      for (size_t c = 0; c < key.size(); ++c) parts[2][c] -= key[c], parts[3][c] *= key[c];
      Layer::Mlp mlp;
      *mlp.mutable_units() = attention.units();
      mlp.add_units(1);
      mlp.set_activation(attention.activation());
      mlp.set_last(Layer::LINEAR);
      scores.push_back(MlpOf(sample, layer.name(), mlp, Joined(parts))[0]);
    } else if (attention.score() == Layer::Attention::DOT) {
      scores.push_back(Dot(query, key) / std::sqrt(static_cast<double>(key.size())));
    } else {
      scores.push_back(Dot(Linear(sample, query, layer.name() + ".weight", ""), key));
    }
  }
  if (attention.without_last() && !scores.empty()) scores.pop_back();
  if (attention.softmax()) SoftmaxOf(&scores);
  Doubles sum(query.size());
  for (size_t t = 0; t < scores.size(); ++t) {
    for (size_t c = 0; c < sum.size(); ++c) sum[c] += scores[t] * keys[t][c];
  }
  return {sum};
}

std::vector<Vectors> ReferenceModel::SelfAttentionOf(const Sample& sample, const Layer& layer,
                                                     int steps) const {
  const Layer::SelfAttention& attention = layer.self_attention();
  std::vector<Doubles> x = StepsRead(sample, layer, steps);
  const int positions = static_cast<int>(attention.positions());
  for (int t = 0; t < steps && positions > 0; ++t) {
    const int position = std::min(steps - 1 - t, positions - 1);
    for (size_t c = 0; c < x[t].size(); ++c) {
      x[t][c] += Parameter(sample, layer.name() + ".positions", position, static_cast<int>(c));
    }
  }
  const size_t heads = std::max(attention.heads(), 1u);
  for (uint32_t block = 0; block < std::max(attention.blocks(), 1u); ++block) {
    const std::string prefix = absl::StrCat(layer.name(), ".", block, ".");
    const auto linear = [&](const Doubles& in, const std::string& part) {
      return Linear(sample, in, prefix + part + ".weight", prefix + part + ".bias");
    };
    std::vector<Doubles> q, k, v;
    for (const Doubles& step : x) {
      q.push_back(linear(step, "query"));
      k.push_back(linear(step, "key"));
      v.push_back(linear(step, "value"));
    }
    for (int t = 0; t < steps; ++t) {
      const size_t width = x[t].size() / heads;
      Doubles mixed(x[t].size());
      for (size_t h = 0; h < heads; ++h) {
        Doubles scores(steps);
        for (int s = 0; s < steps; ++s) {
          for (size_t c = h * width; c < (h + 1) * width; ++c) {
            scores[s] += q[t][c] * k[s][c] / std::sqrt(static_cast<double>(width));
          }
        }
        SoftmaxOf(&scores);
        for (int s = 0; s < steps; ++s) {
          for (size_t c = h * width; c < (h + 1) * width; ++c) mixed[c] += scores[s] * v[s][c];
        }
      }
      const Doubles output = linear(mixed, "output");
      for (size_t c = 0; c < output.size(); ++c) x[t][c] += output[c];
      x[t] = LayerNorm(sample, prefix + "first_norm", x[t]);
    }
    for (int t = 0; t < steps; ++t) {
      Doubles up = linear(x[t], "up");
      for (double& value : up) value = std::max(value, 0.0);
      const Doubles down = linear(up, "down");
      for (size_t c = 0; c < down.size(); ++c) x[t][c] += down[c];
      x[t] = LayerNorm(sample, prefix + "second_norm", x[t]);
    }
  }
  std::vector<Vectors> value;
  for (const Doubles& step : x) value.push_back({step});
  return value;
}

Vectors ReferenceModel::PoolOf(const Sample& sample, const Layer& layer, int steps) const {
  const std::vector<Doubles> x = StepsRead(sample, layer, steps);
  int width = 0;
  for (const std::string& name : layer.input()) width += WidthOf(name);
  Doubles y(width);
  for (int t = 0; t < steps; ++t) {
    const bool counts = layer.pool().mode() != Layer::Pool::LAST || t + 1 == steps;
    for (int c = 0; c < width; ++c) {
      y[c] += counts ? x[t][c] / (layer.pool().mode() == Layer::Pool::MEAN ? steps : 1) : 0;
    }
  }
  return {y};
}

int ReferenceModel::WidthOf(const std::string& name) const {
  int width = 0;
  for (const EmbeddedFeature& feature : spec_.inputs.features) {
    const bool is_step = feature.sequence != kSamples;
    const std::string& read_as =
        is_step ? spec_.inputs.sequences[feature.sequence].name : feature.name;
    if (read_as == name) width += feature.dim;
  }
  for (const Layer& layer : job_.layer()) {
    if (layer.name() != name) continue;
    if (layer.has_mlp()) return static_cast<int>(layer.mlp().units(layer.mlp().units_size() - 1));
    const bool adds = layer.has_self_attention() || layer.has_normalize() || layer.has_pool();
    CHECK(adds || layer.has_multiply() || layer.has_add() || layer.has_gate());
    for (const std::string& input : layer.input()) {
      width += WidthOf(input);
      if (!adds) break;
    }
  }
  return width;
}

void ReferenceModel::AddLayer(const Layer& layer, Sample* sample) const {
  const StepSequence* const sequence = SequenceOf(*sample, layer);
  if (sequence == nullptr) {
    sample->layers[layer.name()] = LayerOf(*sample, layer);
    return;
  }
  const int steps = StepsOf(*sample, *sequence);
  if (layer.has_attention()) {
    sample->layers[layer.name()] = AttentionOf(*sample, layer, steps);
  } else if (layer.has_pool()) {
    sample->layers[layer.name()] = PoolOf(*sample, layer, steps);
  } else if (layer.has_self_attention()) {
    sample->steps[layer.name()] = SelfAttentionOf(*sample, layer, steps);
  } else {
    std::vector<Vectors> value;
    for (sample->step = 0; sample->step < steps; ++sample->step) {
      value.push_back(LayerOf(*sample, layer));
    }
    sample->step = -1;
    sample->steps[layer.name()] = std::move(value);
  }
}

Vectors ReferenceModel::LayerOf(const Sample& sample, const Layer& layer) const {
  const Vectors x = InputsOf(sample, layer.input());
  const Doubles all = Joined(x);
  Doubles y;
  switch (layer.kind_case()) {
    case Layer::kMlp:
      if (layer.copies() == 0) return {MlpOf(sample, layer.name(), layer.mlp(), all)};
      {
        Vectors copies;
        for (uint32_t i = 0; i < layer.copies(); ++i) {
          copies.push_back(MlpOf(sample, absl::StrCat(layer.name(), ".", i), layer.mlp(), all));
        }
        return copies;
      }
    case Layer::kDot:
      if (layer.dot().keep_first()) y = x[0];
      for (size_t i = 1; i < x.size(); ++i) {
        for (size_t j = 0; j < i; ++j) y.push_back(Dot(x[i], x[j]));
      }
      return {y};
    case Layer::kFm:
      y = {0};
      for (size_t i = 1; i < x.size(); ++i) {
        for (size_t j = 0; j < i; ++j) y[0] += Dot(x[i], x[j]);
      }
      return {y};
    case Layer::kFirstOrder:
      return {{FirstOrderOf(sample, layer)}};
    case Layer::kCross:
      return {CrossOf(sample, layer, all)};
    case Layer::kBilinear:
      return {{BilinearOf(sample, layer)}};
    case Layer::kFeatureGate:
      return GateOf(sample, layer, x);
    case Layer::kEmbed: {
      Vectors vectors;
      for (size_t n = 0; n < all.size(); ++n) {
        vectors.emplace_back();
        for (uint32_t d = 0; d < layer.embed().dim(); ++d) {
          vectors.back().push_back(all[n] * Parameter(sample, layer.name() + ".weight",
                                                      static_cast<int>(n), static_cast<int>(d)));
        }
      }
      return vectors;
    }
    case Layer::kConcat:
      return {all};
    case Layer::kAdd:
    case Layer::kMultiply: {
      const Vectors first = InputOf(sample, layer.input(0));
      y = Joined(first);
      for (int i = 1; i < layer.input_size(); ++i) {
        const Doubles other = Joined(InputOf(sample, layer.input(i)));
        for (size_t c = 0; c < y.size(); ++c) {
          y[c] = layer.has_add() ? y[c] + other[c] : y[c] * other[c];
        }
      }
      return CutAs(first, y);
    }
    case Layer::kNormalize: {
      Vectors vectors = x;
      for (Doubles& vector : vectors) {
        const double length = std::max(std::sqrt(Dot(vector, vector)), 1e-12);
        for (double& v : vector) v /= length;
      }
      return vectors;
    }
    case Layer::kPool:
      if (layer.pool().mode() == Layer::Pool::LAST) return {x.back()};
      y.resize(x[0].size());
      for (const Doubles& vector : x) {
        for (size_t c = 0; c < y.size(); ++c) {
          y[c] += vector[c] / (layer.pool().mode() == Layer::Pool::MEAN ? x.size() : 1);
        }
      }
      return {y};
    case Layer::kGate:
      return {MixOf(sample, layer, x)};
    case Layer::kAttention:
    case Layer::kSelfAttention:
    case Layer::KIND_NOT_SET:
      break;
  }
  CHECK(false);
  return {};
}

double ReferenceModel::OwnLogit(const Sample& sample, const Task& task) const {
  double logit = 0;
  Doubles wide;
  for (const std::string& name : task.input()) {
    const Doubles input = Joined(InputOf(sample, name));
    if (input.size() == 1 && sample.layers.count(name) > 0) {
      logit += input[0];
    } else {
      wide.insert(wide.end(), input.begin(), input.end());
    }
  }
  if (!wide.empty()) {
    logit += Linear(sample, wide, task.label() + ".weight", task.label() + ".bias")[0];
  }
  return logit;
}

double ReferenceModel::Loss(const Doubles& arena, const Vectors& rows, Doubles* logits) const {
  double loss = 0;
  for (int b = 0; b < shape_.batch_size; ++b) {
    Sample sample{b, arena, rows};
    for (const Layer& layer : job_.layer()) AddLayer(layer, &sample);
    std::map<std::string, double> of_labels;
    for (int t = 0; t < job_.task_size(); ++t) {
      const Task& task = job_.task(t);
      double logit = OwnLogit(sample, task);
      if (!task.times().empty()) {
        const double p = Sigmoid(logit) * Sigmoid(of_labels.at(task.times()));
        logit = std::log(p / (1 - p));
      }
      of_labels[task.label()] = logit;
      logits->push_back(logit);
      const int i = t * shape_.batch_size + b;
      const double weight = (batch_.weights.empty() ? 1 : batch_.weights[i]) *
                            (task.has_weight() ? task.weight() : 1);
      loss += weight * (std::max(logit, 0.0) - logit * batch_.labels[i] +
                        std::log1p(std::exp(-std::fabs(logit))));
    }
  }
  return loss;
}

}  // namespace thermocline
