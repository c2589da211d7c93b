/* The connection of a training script to its worker, for any language that can call C.
 *
 * thermocline-worker starts the script that a job names (worker { command: [...] }) and computes
 * its steps with it: it hands out batches with the rows of their keys, and takes the gradients of
 * these rows, the losses and the scores back. This library needs nothing but the C library and
 * starts no thread. No call waits longer than 100 ms; tc_save and tc_loaded take as long as their
 * bytes do.
 *
 *   tc_run* run = NULL;
 *   tc_status status;
 *   do status = tc_connect(&run); while (status == TC_AGAIN);
 *   while (status == TC_OK || status == TC_AGAIN) {
 *     tc_event event;
 *     status = tc_next(run, &event);
 *     if (status != TC_OK) continue;
 *     if (event.kind == TC_EVENT_BATCH) {
 *       ... tc_array(run, event.slot, TC_ROWS, 0, &rows, &count) ...
 *       do status = tc_step(run, event.slot, loss, NAN, 0); while (status == TC_AGAIN);
 *       do status = tc_release(run, event.slot); while (status == TC_AGAIN);
 *     } else if (event.kind == TC_EVENT_SAVE) { // a state of 0 bytes, where there is none
 *       do status = tc_save(run, NULL, 0); while (status == TC_AGAIN);
 *     } else if (event.kind == TC_EVENT_PHASE && strstr(event.text, "\"trained\"") != NULL) {
 *       do status = tc_done(run); while (status == TC_AGAIN);
 *       break;
 *     }
 *   }
 *   tc_close(run);
 *
 * The thread that connected a run makes all its calls. Those of another thread and those of a
 * forked child are refused, and the exit of a child closes nothing. After every status but TC_OK
 * and TC_AGAIN, tc_message explains it to the thread that made the call.
 *
 * Of what the worker sends, sizes and offsets are checked, and its memory is sealed against
 * shrinking, so that arrays never reach outside of it. Values are not checked: indices, offsets of
 * lookups and segments are the worker's word.
 */
#ifndef THERMOCLINE_WORKER_API_THERMOCLINE_H_
#define THERMOCLINE_WORKER_API_THERMOCLINE_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TC_API __attribute__((visibility("default")))

typedef struct tc_run tc_run;

typedef enum tc_status {
  TC_OK = 0,
  TC_AGAIN = 1,   /* Nothing has come, or nothing could be sent, for 100 ms: call again. */
  TC_GONE = 2,    /* The worker has ended, or ends this script. The script should exit. */
  TC_REFUSED = 3, /* The call may not be made here, or not now. It has changed nothing. */
  TC_TROUBLE = 4  /* The system fails (no memory), or the worker breaks the protocol. */
} tc_status;

typedef enum tc_event_kind {
  TC_EVENT_BATCH = 1,      /* A batch to train. Answer it with tc_step. */
  TC_EVENT_EVALUATION = 2, /* A batch to score. Answer it with tc_scores. */
  TC_EVENT_SAVE = 3,       /* A checkpoint is written. Answer it with tc_save. */
  TC_EVENT_LOAD = 4,       /* tc_loaded returns the state that a checkpoint kept. No answer. */
  TC_EVENT_PHASE = 5       /* `text` is JSON, such as {"phase": "trained"}. No answer. */
} tc_event_kind;

typedef struct tc_event {
  uint32_t kind;    /* a tc_event_kind */
  uint32_t slot;    /* names the batch in the calls below */
  int64_t step;     /* of the batch, from 0 */
  uint64_t size;    /* samples of a batch; bytes of a state */
  const char* text; /* of TC_EVENT_PHASE, else NULL; valid until the run's next call */
} tc_event;

/* The arrays of a batch. Each begins at a multiple of 64 bytes. Those that the script writes begin
 * with any values: the script writes all of them. */
typedef enum tc_array_kind {
  TC_NUMERIC = 1,        /* float [size, numeric columns] */
  TC_LABELS = 2,         /* float [size] */
  TC_WEIGHTS = 3,        /* float [size]; a batch without it: each weight is 1 */
  TC_ROWS = 4,           /* float [rows, dim] of all tables of one dim; index: which dim */
  TC_INDICES = 5,        /* int32 [lookups]: rows of TC_ROWS; index: the feature */
  TC_OFFSETS = 6,        /* int32 [size + 1], first lookup of each sample; a feature without it:
                            one lookup a sample; index: the feature */
  TC_LOOKUP_WEIGHTS = 7, /* float [lookups]; without it: each is 1; index: the feature */
  TC_GRADIENTS = 8,      /* float [rows, dim], the script writes it; index: which dim */
  TC_HAS_GRADIENT = 9,   /* uint8 [rows], the script writes it; 0: the row has no gradient, and is
                            not updated; index: which dim */
  TC_SCORES_ARRAY = 10,  /* float [size], the script writes it: the logits of its samples */
  TC_OWN_METRIC = 11,    /* float [1], the script writes it: its own metric of an evaluation, of
                            which only the last batch has this array */
  /* The same lookups by row, for batches to train. Row r of TC_ROWS is read by the vectors
     segments[offsets[r]] up to but not including segments[offsets[r + 1]], in the order of the
     samples. Vector b * features + f is that of sample b and feature f, counted over all features.
     index: which dim */
  TC_SEGMENT_OFFSETS = 12, /* int32 [rows + 1] */
  TC_SEGMENTS = 13,        /* int32 [lookups of the dim's features] */
  TC_SEGMENT_WEIGHTS = 14  /* float [as TC_SEGMENTS]; without it: each is 1 */
} tc_array_kind;

/* Flags of tc_step. */
typedef enum tc_step_flag {
  TC_SKIPS = 2 /* The step counts, but nothing of this batch is applied to rows. */
} tc_step_flag;

/* The version of this library. Programs and library must be of one build. */
TC_API const char* tc_version(void);

/* Connects this process to the worker that has started it, and *run becomes its run.
 * AGAIN: the worker has sent nothing yet, and *run is NULL.
 * REFUSED: no worker has started this process (one that started its parent does not count); the
 * process was connected before, and its environment has no new connection; the worker is of another
 * build, and the message names both versions. */
TC_API tc_status tc_connect(tc_run** run);

/* Frees a run, and all memory of its batches. For the worker the script has failed then, unless
 * tc_done came before. Any thread may call it when no other call of the run goes on. In a forked
 * child it frees the child's copy alone. NULL: does nothing. */
TC_API void tc_close(tc_run* run);

/* The explanation of the last status of this thread's calls that was not OK or AGAIN: one line of
 * English, never NULL. run may be NULL: then that of the last tc_connect. Valid until the run's
 * next call. */
TC_API const char* tc_message(const tc_run* run);

/* The job, its features and its tables, as JSON. Valid until tc_close. Any thread may call it. */
TC_API const char* tc_job(const tc_run* run);

/* Takes the next event. AGAIN: there is none yet.
 * REFUSED: the last batch or TC_EVENT_SAVE was not answered yet.
 * GONE: the message has the worker's reason, where it gave one. */
TC_API tc_status tc_next(tc_run* run, tc_event* event);

/* An array of a batch, in memory that the worker shares: *data becomes its first element, *count
 * the number of its elements. The worker changes nothing of it until tc_release.
 * index: see tc_array_kind; 0 where that names none.
 * REFUSED: the batch has no such array, or was released; *data is NULL. */
TC_API tc_status tc_array(tc_run* run, uint32_t slot, uint32_t kind, uint32_t index, void** data,
                          uint64_t* count);

/* Closes the step of a batch. What TC_GRADIENTS and TC_HAS_GRADIENT hold is the step's only push.
 * They are the worker's to read from now on: do not write to them after this call.
 *   loss_sum: the sum of the losses of the batch's samples
 *   rate: this step's learning rate, times each table's learning_rate_scale; NAN: the job's
 *   flags: 0 or TC_SKIPS
 * REFUSED: the step is closed already; the batch is one to score. */
TC_API tc_status tc_step(tc_run* run, uint32_t slot, double loss_sum, float rate, uint32_t flags);

/* Answers a batch to score, with what TC_SCORES_ARRAY holds; do not write to it after this call.
 * REFUSED: as tc_step. */
TC_API tc_status tc_scores(tc_run* run, uint32_t slot);

/* Gives the memory of an answered batch back: its arrays may not be read or written any more. A
 * batch may be kept as long as the script likes; the worker takes other memory meanwhile.
 * REFUSED: the batch was not answered yet, or was released before. */
TC_API tc_status tc_release(tc_run* run, uint32_t slot);

/* Answers TC_EVENT_SAVE with what the script wants back from this checkpoint; `size` may be 0. The
 * largest size is max_state_bytes of tc_job; with more the worker ends the script. The bytes are
 * copied by the first call: after AGAIN, call again with the same.
 * REFUSED: no such event is open; the size is another than that of the call before, which was
 * answered with AGAIN. */
TC_API tc_status tc_save(tc_run* run, const void* bytes, uint64_t size);

/* The state of a TC_EVENT_LOAD. Valid until the next tc_next; NULL where *size is 0.
 * REFUSED: the last event was of another kind. */
TC_API tc_status tc_loaded(tc_run* run, const void** bytes, uint64_t* size);

/* Asks, after {"phase": "trained"}, for the batches of the held-out data. */
TC_API tc_status tc_evaluate(tc_run* run);

/* Reports that the script has failed, and why (a traceback): the worker's error contains it. Of a
 * text of more than 64 KiB the end is sent. Exit then. */
TC_API tc_status tc_fail(tc_run* run, const char* text);

/* Warns the user: the launcher shows the text, and metrics.jsonl keeps it. Of a text of more than
 * 64 KiB the end is sent. */
TC_API tc_status tc_warn(tc_run* run, const char* text);

/* Reports that the script needs nothing more of the worker, and ends with success. */
TC_API tc_status tc_done(tc_run* run);

#ifdef __cplusplus
}
#endif

#endif /* THERMOCLINE_WORKER_API_THERMOCLINE_H_ */
