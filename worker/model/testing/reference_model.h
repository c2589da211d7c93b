// The layers of a job in plain double loops, one sample, and one step, at a time: what
// worker/model's graphs are compared with. It reads the job itself, not the graph that was made of
// it. Nothing is dropped.
#ifndef THERMOCLINE_WORKER_MODEL_TESTING_REFERENCE_MODEL_H_
#define THERMOCLINE_WORKER_MODEL_TESTING_REFERENCE_MODEL_H_

#include <map>
#include <string>
#include <vector>

#include "common/model/model_spec.h"
#include "proto/job.pb.h"
#include "worker/model/dense_arena.h"
#include "worker/model/testing/random_batch.h"

namespace thermocline {

class ReferenceModel {
 public:
  using Doubles = std::vector<double>;
  using Vectors = std::vector<Doubles>;

  // `job` has layers and tasks, no preset. All outlive this.
  ReferenceModel(const Job& job, const ModelSpec& spec, const DenseArena& layout,
                 const RandomBatch& batch, const BatchShape& shape)
      : job_(job), spec_(spec), layout_(layout), batch_(batch), shape_(shape) {}

  // The sum of the losses of the batch; appends its logits (ReferenceLoss).
  double Loss(const Doubles& arena, const Vectors& rows, Doubles* logits) const;

 private:
  // One sample, and the parameters that it is computed with.
  struct Sample {
    int index = 0;
    const Doubles& arena;
    const Vectors& rows;
    std::map<std::string, Vectors> layers = {};              // So far, of the sample.
    std::map<std::string, std::vector<Vectors>> steps = {};  // [steps] So far, of a sequence.
    int step = -1;                                           // The one under way.
  };

  // Null: neither the layer nor its context reads steps.
  const StepSequence* SequenceOf(const Sample& sample, const Layer& layer) const;
  const StepSequence* SequenceOf(const Sample& sample, const std::string& name) const;
  int StepsOf(const Sample& sample, const StepSequence& sequence) const;
  // How many numbers a step, a feature or some kinds of layers have.
  int WidthOf(const std::string& name) const;
  Doubles RowOfStep(const Sample& sample, int feature) const;
  void AddLayer(const Layer& layer, Sample* sample) const;
  Doubles LayerNorm(const Sample& sample, const std::string& tensors, Doubles x) const;
  // What the layer reads at each step.
  std::vector<Doubles> StepsRead(const Sample& sample, const Layer& layer, int steps) const;
  Vectors AttentionOf(const Sample& sample, const Layer& layer, int steps) const;
  std::vector<Vectors> SelfAttentionOf(const Sample& sample, const Layer& layer, int steps) const;
  Vectors PoolOf(const Sample& sample, const Layer& layer, int steps) const;
  Doubles MlpOf(const Sample& sample, const std::string& name, const Layer::Mlp& mlp,
                Doubles x) const;
  Doubles PooledRow(const Sample& sample, int feature) const;
  Vectors InputOf(const Sample& sample, const std::string& name) const;
  Vectors InputsOf(const Sample& sample,
                   const google::protobuf::RepeatedPtrField<std::string>& names) const;
  double Parameter(const Sample& sample, const std::string& tensor, int row, int column) const;
  bool Has(const std::string& tensor) const;
  // x W (+ b), where the tensors exist.
  Doubles Linear(const Sample& sample, const Doubles& x, const std::string& weight,
                 const std::string& bias) const;
  Vectors LayerOf(const Sample& sample, const Layer& layer) const;
  Doubles CrossOf(const Sample& sample, const Layer& layer, const Doubles& x) const;
  double BilinearOf(const Sample& sample, const Layer& layer) const;
  double OwnLogit(const Sample& sample, const Task& task) const;
  double FirstOrderOf(const Sample& sample, const Layer& layer) const;
  Vectors GateOf(const Sample& sample, const Layer& layer, const Vectors& x) const;
  Doubles MixOf(const Sample& sample, const Layer& layer, const Vectors& x) const;

  const Job& job_;
  const ModelSpec& spec_;
  const DenseArena& layout_;
  const RandomBatch& batch_;
  const BatchShape& shape_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_MODEL_TESTING_REFERENCE_MODEL_H_
