/* A whole training script over libthermocline, in C: a linear model of one numeric column and the
 * pooled first weights of its rows. And scripts that misuse the library, which say what it answers.
 *
 *   linear_script MODE      exits with 0 where all is as it should be
 */
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "worker/api/thermocline.h"

#define DIM 2
#define FEATURES 2
#define RATE 0.5f
#define KEPT_UNTIL 2 /* The batch of step 0 is kept until this step is closed. */

static tc_run* run;

static void fail(const char* what, int line) {
  fprintf(stderr, "linear_script.c:%d: %s; tc_message: %s\n", line, what, tc_message(run));
  exit(10);
}
#define CHECK(condition) \
  if (!(condition)) fail(#condition, __LINE__)

/* Calls until it is not TC_AGAIN. */
#define UNTIL_DONE(status, call) \
  do {                           \
    status = (call);             \
  } while (status == TC_AGAIN)

static void connect_to_worker(void) {
  tc_status status;
  UNTIL_DONE(status, tc_connect(&run));
  CHECK(status == TC_OK);
}

static tc_event next_event(void) {
  tc_event event;
  tc_status status;
  UNTIL_DONE(status, tc_next(run, &event));
  CHECK(status == TC_OK);
  return event;
}

/* NULL: the batch has no such array. */
static void* find_array(const tc_event* batch, uint32_t kind, uint32_t index, uint64_t* count) {
  void* data = NULL;
  const tc_status status = tc_array(run, batch->slot, kind, index, &data, count);
  CHECK(status == TC_OK || status == TC_REFUSED);
  CHECK((status == TC_OK) == (data != NULL));
  return data;
}

static void* get_array(const tc_event* batch, uint32_t kind, uint32_t index, uint64_t count) {
  uint64_t got = 0;
  void* const data = find_array(batch, kind, index, &got);
  CHECK(data != NULL);
  CHECK(count == 0 || got == count);
  CHECK((uintptr_t)data % 64 == 0);
  return data;
}

/* The model. */

static struct {
  float weight;
  float bias;
} model = {0.25f, 0};

/* Calls `visit` for each lookup of a sample, with its row and its weight. */
static void each_lookup(const tc_event* batch, uint64_t sample,
                        void (*visit)(void*, int32_t row, float weight), void* data) {
  uint32_t feature;
  for (feature = 0; feature < FEATURES; ++feature) {
    uint64_t count = 0, lookup;
    const int32_t* const rows = get_array(batch, TC_INDICES, feature, 0);
    const int32_t* const offsets = find_array(batch, TC_OFFSETS, feature, &count);
    const float* const weights = find_array(batch, TC_LOOKUP_WEIGHTS, feature, &count);
    const uint64_t begin = offsets == NULL ? sample : (uint64_t)offsets[sample];
    const uint64_t end = offsets == NULL ? sample + 1 : (uint64_t)offsets[sample + 1];
    for (lookup = begin; lookup < end; ++lookup) {
      visit(data, rows[lookup], weights == NULL ? 1 : weights[lookup]);
    }
  }
}

struct forward {
  const float* rows; /* [rows, DIM] */
  float logit;
};
static void add_row(void* data, int32_t row, float weight) {
  struct forward* const forward = data;
  forward->logit += weight * forward->rows[row * DIM];
}

static float find_logit(const tc_event* batch, uint64_t sample) {
  const float* const numeric = get_array(batch, TC_NUMERIC, 0, batch->size);
  struct forward forward = {get_array(batch, TC_ROWS, 0, 0), 0};
  forward.logit = model.bias + model.weight * numeric[sample];
  each_lookup(batch, sample, add_row, &forward);
  return forward.logit;
}

struct backward {
  float* gradients; /* [rows, DIM] */
  uint8_t* has_gradient;
  float error;
};
static void add_gradient(void* data, int32_t row, float weight) {
  struct backward* const backward = data;
  backward->gradients[row * DIM] += weight * backward->error;
  backward->has_gradient[row] = 1;
}

/* Trains on squared errors, (logit - label)^2 / 2. */
static void train(const tc_event* batch) {
  uint64_t values = 0, rows = 0, sample;
  const float* const labels = get_array(batch, TC_LABELS, 0, batch->size);
  const float* const numeric = get_array(batch, TC_NUMERIC, 0, batch->size);
  struct backward backward;
  double loss = 0;
  float weight_gradient = 0, bias_gradient = 0;
  tc_status status;
  backward.gradients = find_array(batch, TC_GRADIENTS, 0, &values);
  backward.has_gradient = find_array(batch, TC_HAS_GRADIENT, 0, &rows);
  CHECK(values == rows * DIM);
  memset(backward.gradients, 0, values * sizeof(float));
  memset(backward.has_gradient, 0, rows);
  for (sample = 0; sample < batch->size; ++sample) {
    backward.error = find_logit(batch, sample) - labels[sample];
    loss += 0.5 * backward.error * backward.error;
    weight_gradient += backward.error * numeric[sample];
    bias_gradient += backward.error;
    each_lookup(batch, sample, add_gradient, &backward);
  }
  model.weight -= RATE * weight_gradient;
  model.bias -= RATE * bias_gradient;
  /* Odd steps bring a learning rate of their own, step 4 is skipped. */
  UNTIL_DONE(status, tc_step(run, batch->slot, loss, batch->step % 2 == 1 ? 0.125f : NAN,
                             batch->step == 4 ? TC_SKIPS : 0));
  CHECK(status == TC_OK);
}

/* The metric of its own is the largest score, in the batch that wants it. */
static void score(const tc_event* batch) {
  float* const scores = get_array(batch, TC_SCORES_ARRAY, 0, batch->size);
  uint64_t count = 0, sample;
  float* const own_metric = find_array(batch, TC_OWN_METRIC, 0, &count);
  tc_status status;
  for (sample = 0; sample < batch->size; ++sample) scores[sample] = find_logit(batch, sample);
  if (own_metric != NULL) {
    CHECK(count == 1);
    *own_metric = scores[0];
    for (sample = 1; sample < batch->size; ++sample) {
      if (scores[sample] > *own_metric) *own_metric = scores[sample];
    }
  }
  UNTIL_DONE(status, tc_scores(run, batch->slot));
  CHECK(status == TC_OK);
}

static void release(const tc_event* batch) {
  tc_status status;
  UNTIL_DONE(status, tc_release(run, batch->slot));
  CHECK(status == TC_OK);
}

static void take_state(void) {
  const void* bytes = NULL;
  uint64_t size = 0;
  CHECK(tc_loaded(run, &bytes, &size) == TC_OK);
  CHECK(size == sizeof(model));
  memcpy(&model, bytes, sizeof(model));
}

static void give_state(void) {
  tc_status status;
  UNTIL_DONE(status, tc_save(run, &model, sizeof(model)));
  CHECK(status == TC_OK);
}

/* Trains until the worker says that training is over, then scores what is held out. */
static int train_and_evaluate(void) {
  tc_event first = {0, 0, 0, 0, NULL};
  float first_label = 0;
  int keeps_first = 0, is_trained = 0;
  tc_status status;
  connect_to_worker();
  CHECK(strcmp(tc_job(run), "{\"name\": \"linear\"}") == 0);
  for (;;) {
    const tc_event event = next_event();
    switch (event.kind) {
      case TC_EVENT_LOAD:
        CHECK(event.size == sizeof(model));
        take_state();
        break;
      case TC_EVENT_SAVE:
        give_state();
        break;
      case TC_EVENT_BATCH:
        CHECK(!is_trained);
        train(&event);
        if (event.step == 0) {
          first = event;
          keeps_first = 1;
          first_label = *(const float*)get_array(&event, TC_LABELS, 0, event.size);
          break;
        }
        release(&event);
        if (keeps_first && event.step == KEPT_UNTIL) {
          CHECK(*(const float*)get_array(&first, TC_LABELS, 0, first.size) == first_label);
          release(&first);
          keeps_first = 0;
        }
        break;
      case TC_EVENT_EVALUATION:
        score(&event);
        release(&event);
        break;
      case TC_EVENT_PHASE:
        if (strcmp(event.text, "{\"phase\": \"trained\"}") == 0) {
          is_trained = 1;
          CHECK(tc_evaluate(run) == TC_OK);
          break;
        }
        CHECK(strcmp(event.text, "{\"phase\": \"evaluated\", \"metrics\": {\"auc\": 0.5}}") == 0);
        UNTIL_DONE(status, tc_done(run));
        CHECK(status == TC_OK);
        tc_close(run);
        return 0;
      default:
        CHECK(!"a known event");
    }
  }
}

/* Misuse. */

static int has_words(const tc_run* of, const char* words) {
  if (strstr(tc_message(of), words) != NULL) return 1;
  fprintf(stderr, "'%s' is not in '%s'\n", words, tc_message(of));
  return 0;
}

/* Whether every function that belongs to the thread of the run is refused with these words. */
static int refuses_all(uint32_t slot, const char* words) {
  tc_event event;
  void* data = &event;
  const void* state = &event;
  uint64_t size = 7;
  return tc_next(run, &event) == TC_REFUSED && has_words(run, words) &&
         tc_array(run, slot, TC_LABELS, 0, &data, &size) == TC_REFUSED && data == NULL &&
         has_words(run, words) && tc_step(run, slot, 1, NAN, 0) == TC_REFUSED &&
         has_words(run, words) && tc_scores(run, slot) == TC_REFUSED && has_words(run, words) &&
         tc_release(run, slot) == TC_REFUSED && has_words(run, words) &&
         tc_save(run, "x", 1) == TC_REFUSED && has_words(run, words) &&
         tc_loaded(run, &state, &size) == TC_REFUSED && state == NULL && has_words(run, words) &&
         tc_evaluate(run) == TC_REFUSED && has_words(run, words) &&
         tc_warn(run, "x") == TC_REFUSED && has_words(run, words) &&
         tc_fail(run, "x") == TC_REFUSED && has_words(run, words) && tc_done(run) == TC_REFUSED &&
         has_words(run, words);
}

/* *slot becomes whether the calls are refused. */
static void* call_from_thread(void* slot) {
  *(uint32_t*)slot = (uint32_t)refuses_all(*(uint32_t*)slot, "another thread has connected");
  return NULL;
}

/* What a forked child may not do. Its exit, with all that it closes, changes nothing here. */
static void call_from_child(const tc_event* batch) {
  int end = 0;
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    tc_run* second = NULL;
    if (!refuses_all(batch->slot, "forked child")) _exit(1);
    if (strcmp(tc_job(run), "{\"name\": \"linear\"}") != 0) _exit(2);
    if (tc_connect(&second) != TC_REFUSED || second != NULL) _exit(3);
    if (!has_words(NULL, "no worker has started this process")) _exit(4);
    tc_close(run);
    exit(0);
  }
  CHECK(waitpid(child, &end, 0) == child);
  CHECK(WIFEXITED(end) && WEXITSTATUS(end) == 0);
}

static int misuse(void) {
  tc_run* second = NULL;
  tc_event event, other;
  uint32_t from_thread;
  pthread_t thread;
  void* data = &event;
  const void* state = &event;
  uint64_t size = 7;
  connect_to_worker();
  CHECK(tc_connect(&second) == TC_REFUSED && second == NULL);
  CHECK(has_words(NULL, "connected before"));
  CHECK(getenv("THERMOCLINE_WORKER") == NULL);

  /* The worker sends nothing before it is asked to. */
  CHECK(tc_next(run, &event) == TC_AGAIN);
  CHECK(tc_loaded(run, &state, &size) == TC_REFUSED && state == NULL && size == 0);
  CHECK(tc_save(run, "x", 1) == TC_REFUSED);
  CHECK(tc_step(run, 0, 1, NAN, 0) == TC_REFUSED);
  CHECK(tc_evaluate(run) == TC_OK);

  event = next_event();
  CHECK(event.kind == TC_EVENT_BATCH && event.step == 7 && event.size == 3);
  CHECK(tc_next(run, &other) == TC_REFUSED &&
        has_words(run, "the batch of step 7 is open: call tc_step"));
  CHECK(tc_scores(run, event.slot) == TC_REFUSED && has_words(run, "trained, and not scored"));
  CHECK(tc_release(run, event.slot) == TC_REFUSED && has_words(run, "step 7 was not answered"));
  CHECK(tc_step(run, event.slot + 1, 1, NAN, 0) == TC_REFUSED);
  CHECK(tc_step(run, 0xffffffffu, 1, NAN, 0) == TC_REFUSED);
  CHECK(tc_array(run, event.slot, TC_WEIGHTS, 0, &data, &size) == TC_REFUSED);
  CHECK(data == NULL && size == 0);
  CHECK(tc_array(run, event.slot, TC_ROWS, 1, &data, &size) == TC_REFUSED);
  from_thread = event.slot;
  CHECK(pthread_create(&thread, NULL, call_from_thread, &from_thread) == 0);
  CHECK(pthread_join(thread, NULL) == 0);
  CHECK(from_thread == 1 && has_words(run, "has no array of kind 4 and index 1"));
  call_from_child(&event);

  CHECK(tc_step(run, event.slot, 1, NAN, 0) == TC_OK);
  CHECK(tc_step(run, event.slot, 1, NAN, 0) == TC_REFUSED &&
        has_words(run, "step 7 was answered before"));
  CHECK(tc_array(run, event.slot, TC_LABELS, 0, &data, &size) == TC_OK && size == 3);
  CHECK(tc_release(run, event.slot) == TC_OK);
  CHECK(tc_release(run, event.slot) == TC_REFUSED);
  CHECK(tc_array(run, event.slot, TC_LABELS, 0, &data, &size) == TC_REFUSED);
  CHECK(data == NULL && has_words(run, "was released"));

  event = next_event();
  CHECK(event.kind == TC_EVENT_EVALUATION);
  CHECK(tc_step(run, event.slot, 1, NAN, 0) == TC_REFUSED &&
        has_words(run, "scored, and not trained"));
  CHECK(tc_next(run, &other) == TC_REFUSED && has_words(run, "call tc_scores"));
  CHECK(tc_scores(run, event.slot) == TC_OK);
  CHECK(tc_scores(run, event.slot) == TC_REFUSED && has_words(run, "step 8 was answered before"));

  event = next_event();
  CHECK(event.kind == TC_EVENT_SAVE);
  CHECK(tc_next(run, &other) == TC_REFUSED && has_words(run, "call tc_save"));
  CHECK(tc_save(run, NULL, 0) == TC_OK);

  event = next_event();
  CHECK(event.kind == TC_EVENT_LOAD && event.size == 0);
  CHECK(tc_loaded(run, &state, &size) == TC_OK && state == NULL && size == 0);

  while (tc_next(run, &event) == TC_AGAIN) {
  }
  CHECK(tc_next(run, &event) == TC_GONE && has_words(run, "stopped by its user"));
  CHECK(tc_evaluate(run) == TC_GONE && tc_warn(run, "x") == TC_GONE);
  CHECK(tc_fail(run, NULL) == TC_GONE && tc_done(run) == TC_GONE);
  CHECK(tc_release(run, 0) == TC_REFUSED || tc_release(run, 0) == TC_GONE);
  CHECK(tc_loaded(run, &state, &size) == TC_REFUSED);
  tc_close(run);
  tc_close(NULL);
  CHECK(tc_connect(&run) == TC_REFUSED);
  return 0;
}

/* A child that connects in place of the process that the worker has started. */
static int connect_in_child(void) {
  int end = 0;
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    char numbers[96];
    if (tc_connect(&run) != TC_REFUSED) _exit(1);
    snprintf(numbers, sizeof(numbers), "process %ld as its script, and this is process %ld",
             (long)getppid(), (long)getpid());
    _exit(has_words(NULL, numbers) ? 0 : 2);
  }
  CHECK(waitpid(child, &end, 0) == child);
  CHECK(WIFEXITED(end) && WEXITSTATUS(end) == 0);
  connect_to_worker();
  CHECK(tc_done(run) == TC_OK);
  return 0;
}

/* A second run of the same process, by a way that it was given after the first. */
static int connect_again(void) {
  const char* const way = getenv("THERMOCLINE_WORKER");
  char text[64];
  tc_run* second = NULL;
  tc_status status;
  int kept;
  CHECK(way != NULL);
  kept = dup(atoi(way));
  CHECK(kept >= 0);
  connect_to_worker();
  CHECK(tc_connect(&second) == TC_REFUSED && second == NULL);
  tc_close(run);
  CHECK(tc_connect(&second) == TC_REFUSED && second == NULL);
  CHECK(has_words(NULL, "connected before"));
  snprintf(text, sizeof(text), "%d:%ld", kept, (long)getpid());
  setenv("THERMOCLINE_WORKER", text, 1);
  connect_to_worker();
  UNTIL_DONE(status, tc_done(run));
  CHECK(status == TC_OK);
  tc_close(run);
  return 0;
}

/* Nothing to connect to. */
static int connect_to_nothing(void) {
  const char* const bad[] = {"",    "3", "3:", ":1", "x:1", "3:x", "3:1:", "3:99999999999999999999",
                             "-3:1"};
  size_t i;
  char text[64];
  for (i = 0; i < sizeof(bad) / sizeof(bad[0]); ++i) {
    setenv("THERMOCLINE_WORKER", bad[i], 1);
    CHECK(tc_connect(&run) == TC_REFUSED && has_words(NULL, "should be FD:PID"));
  }
  snprintf(text, sizeof(text), "2:%ld", (long)getpid());
  setenv("THERMOCLINE_WORKER", text, 1);
  CHECK(tc_connect(&run) == TC_REFUSED &&
        has_words(NULL, "descriptor 2, the connection to the worker, was closed"));
  unsetenv("THERMOCLINE_WORKER");
  CHECK(tc_connect(&run) == TC_REFUSED && has_words(NULL, "no worker has started this process"));
  return 0;
}

/* Prints why tc_connect has failed. */
static int connect_refused(void) {
  tc_status status;
  UNTIL_DONE(status, tc_connect(&run));
  fprintf(stderr, "%s\n", tc_message(NULL));
  return (int)status;
}

/* Counts the messages of the worker that break the protocol. */
static int count_trouble(void) {
  int count = 0;
  connect_to_worker();
  for (;;) {
    tc_event event;
    const tc_status status = tc_next(run, &event);
    if (status == TC_GONE) break;
    if (status == TC_TROUBLE) ++count;
    CHECK(status == TC_TROUBLE || status == TC_AGAIN);
  }
  CHECK(has_words(run, "the worker has ended"));
  return count;
}

/* Connects to a worker that sends nothing before this process stops itself. */
static int connect_early(void) {
  CHECK(tc_connect(&run) == TC_AGAIN && run == NULL);
  raise(SIGSTOP);
  connect_to_worker();
  CHECK(tc_done(run) == TC_OK);
  return 0;
}

static int count_descriptors(void) {
  int fd, count = 0;
  for (fd = 0; fd < 64; ++fd) count += fcntl(fd, F_GETFD) >= 0;
  return count;
}

/* Saves its state to a worker that reads nothing before this process stops itself. */
static int save_slowly(void) {
  tc_status status;
  int descriptors;
  connect_to_worker();
  CHECK(next_event().kind == TC_EVENT_SAVE);
  do status = tc_warn(run, "fills the socket");
  while (status == TC_OK);
  CHECK(status == TC_AGAIN);
  CHECK(tc_save(run, "state", 5) == TC_AGAIN);
  descriptors = count_descriptors();
  CHECK(tc_save(run, "state", 5) == TC_AGAIN);
  CHECK(count_descriptors() == descriptors);
  CHECK(tc_save(run, "states", 6) == TC_REFUSED && has_words(run, "began with 5 bytes"));
  raise(SIGSTOP);
  UNTIL_DONE(status, tc_save(run, "state", 5));
  CHECK(status == TC_OK && count_descriptors() == descriptors - 1);
  CHECK(tc_save(run, "state", 5) == TC_REFUSED && has_words(run, "asked for no state"));
  UNTIL_DONE(status, tc_done(run));
  CHECK(status == TC_OK);
  return 0;
}

static unsigned sum_bytes(const void* data, uint64_t size) {
  const volatile unsigned char* const bytes = data;
  unsigned sum = 0;
  uint64_t i;
  for (i = 0; i < size; ++i) sum += bytes[i];
  return sum;
}

/* Reads all arrays of a batch, and writes to those that are the script's. */
static void use_arrays(const tc_event* batch) {
  uint32_t kind, index;
  for (kind = 0; kind < 18; ++kind) {
    for (index = 0; index < 4; ++index) {
      uint64_t count = 0;
      void* const data = find_array(batch, kind, index, &count);
      const uint64_t size = count * (kind == TC_HAS_GRADIENT ? 1 : 4);
      if (data == NULL) continue;
      sum_bytes(data, size);
      if (kind == TC_GRADIENTS || kind == TC_HAS_GRADIENT) memset(data, 1, size);
    }
  }
}

/* Uses all that a worker sends which sends anything. */
static int survive_garbage(void) {
  int batches = 0, loads = 0, trouble = 0;
  connect_to_worker();
  for (;;) {
    tc_event event;
    const void* state = NULL;
    uint64_t size = 0;
    tc_status status = tc_next(run, &event);
    if (status == TC_GONE) break;
    CHECK(status != TC_REFUSED);
    trouble += status == TC_TROUBLE;
    if (status != TC_OK) continue;
    switch (event.kind) {
      case TC_EVENT_BATCH:
      case TC_EVENT_EVALUATION:
        ++batches;
        use_arrays(&event);
        UNTIL_DONE(status, event.kind == TC_EVENT_BATCH ? tc_step(run, event.slot, 1, NAN, 0)
                                                        : tc_scores(run, event.slot));
        CHECK(status == TC_OK);
        if (event.step % 256 != 0) release(&event);
        break;
      case TC_EVENT_SAVE:
        UNTIL_DONE(status, tc_save(run, "x", 1));
        CHECK(status == TC_OK);
        break;
      case TC_EVENT_LOAD:
        ++loads;
        CHECK(tc_loaded(run, &state, &size) == TC_OK && size == event.size);
        sum_bytes(state, size);
        break;
      default:
        CHECK(event.kind == TC_EVENT_PHASE);
        sum_bytes(event.text, strlen(event.text));
    }
  }
  CHECK(has_words(run, "that is all"));
  CHECK(batches > 20 && loads > 20 && trouble > 1000);
  return 0;
}

/* A warning, and a traceback beyond 64 KiB, with messages of the worker unread. */
static int fail_with_traceback(void) {
  const size_t size = 100000;
  char* const text = malloc(size + 1);
  connect_to_worker();
  CHECK(tc_warn(run, "careful") == TC_OK);
  memset(text, '.', size);
  memcpy(text + size - 10, "ValueError", 10);
  text[size] = 0;
  CHECK(tc_fail(run, text) == TC_OK);
  free(text);
  return 5;
}

int main(int argc, char** argv) {
  const char* const mode = argc == 2 ? argv[1] : "";
  if (strcmp(mode, "train") == 0) return train_and_evaluate();
  if (strcmp(mode, "misuse") == 0) return misuse();
  if (strcmp(mode, "child") == 0) return connect_in_child();
  if (strcmp(mode, "again") == 0) return connect_again();
  if (strcmp(mode, "nothing") == 0) return connect_to_nothing();
  if (strcmp(mode, "refused") == 0) return connect_refused();
  if (strcmp(mode, "trouble") == 0) return count_trouble();
  if (strcmp(mode, "fail") == 0) return fail_with_traceback();
  if (strcmp(mode, "early") == 0) return connect_early();
  if (strcmp(mode, "slow") == 0) return save_slowly();
  if (strcmp(mode, "garbage") == 0) return survive_garbage();
  fprintf(stderr, "there is no mode '%s'\n", mode);
  return 2;
}
