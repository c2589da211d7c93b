/* The script's end of the connection to its worker: the contracts are in thermocline.h.
 *
 * Plain C over the C library, and of that only what glibc 2.17 has: no fstat (a symbol of 2.33), no
 * memfd_create or gettid (2.27, 2.30), no sscanf or strtol (other symbols from 2.38 on).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include "common/version/version.h"
#include "worker/api/script_protocol.h"
#include "worker/api/thermocline.h"

#define WAIT_MS 100
#define TEXT_BYTES 4096
#define MAX_JOB_BYTES ((uint64_t)1 << 30)
/* A message has at most one descriptor; further ones are closed. */
#define ROOM_FOR_DESCRIPTORS 8
#define ALIGNMENT 64u /* of arrays, in bytes */

#ifndef MFD_CLOEXEC
#define MFD_CLOEXEC 0x0001u
#define MFD_ALLOW_SEALING 0x0002u
#endif
#ifndef F_ADD_SEALS
#define F_ADD_SEALS 1033
#define F_GET_SEALS 1034
#define F_SEAL_SEAL 0x0001
#define F_SEAL_SHRINK 0x0002
#define F_SEAL_GROW 0x0004
#define F_SEAL_WRITE 0x0008
#endif

typedef struct slot {
  uint8_t* memory; /* NULL: the worker has not sent it yet */
  uint64_t bytes;
  int is_held; /* between its batch and tc_release */
  uint32_t flags;
  int64_t step;
  uint32_t count;
  tc_array_place* places; /* [count] */
} slot;

struct tc_run {
  int socket;
  pid_t pid;
  long thread;
  int is_gone;
  int owes_state;
  int has_open_batch;
  uint32_t open_batch; /* the slot of the batch that was not answered */
  char* job;
  int has_state;
  uint8_t* state; /* of TC_LOAD; NULL where it has no bytes */
  uint64_t state_bytes;
  uint64_t mapped_state_bytes;
  int saved_fd; /* the file of a tc_save that has to be called again; -1: there is none */
  uint64_t saved_bytes;
  slot slots[TC_MAX_SLOTS];
  char message[TEXT_BYTES];
  char end[TEXT_BYTES];                 /* why the connection has ended, if is_gone */
  uint8_t packet[TC_MESSAGE_BYTES + 1]; /* the last message received, and a 0 */
};

/* A received message. Its payload lies in the run's packet, with a 0 behind it. */
typedef struct received {
  tc_header header;
  const uint8_t* payload;
  size_t size;
  int fd; /* to be closed by who reads the message; -1: it has none */
} received;

static const char other_thread[] =
    "another thread has connected this run, and only that thread may use it";
static char connect_message[TEXT_BYTES];
static pid_t connected_pid; /* 0: no process has connected */

static tc_status say(char* message, tc_status status, const char* format, ...)
    __attribute__((format(printf, 3, 4)));
static tc_status say(char* message, tc_status status, const char* format, ...) {
  va_list values;
  va_start(values, format);
  vsnprintf(message, TEXT_BYTES, format, values);
  va_end(values);
  return status;
}

/* Whether a thread of the run's process calls that has not connected it. The run's messages belong
 * to the thread that has, so nothing is written for another. */
static int is_other_thread(const tc_run* run) {
  return getpid() == run->pid && syscall(SYS_gettid) != run->thread;
}

const char* tc_version(void) { return THERMOCLINE_VERSION; }
const char* tc_job(const tc_run* run) { return run->job; }
const char* tc_message(const tc_run* run) {
  if (run == NULL) return connect_message;
  return is_other_thread(run) ? other_thread : run->message;
}

static tc_status check_caller(tc_run* run) {
  if (getpid() != run->pid) {
    return say(run->message, TC_REFUSED,
               "process %ld is a forked child of the script: only the script itself, process %ld, "
               "may use its run",
               (long)getpid(), (long)run->pid);
  }
  return is_other_thread(run) ? TC_REFUSED : TC_OK;
}

/* Messages. */

static tc_status wait_for(tc_run* run, short events) {
  struct pollfd ready = {run->socket, events, 0};
  const int count = poll(&ready, 1, WAIT_MS);
  if (count > 0) return TC_OK;
  if (count == 0 || errno == EINTR) return TC_AGAIN;
  return say(run->message, TC_TROUBLE, "cannot wait for the worker: %s", strerror(errno));
}

/* The worker breaks the protocol. */
static tc_status bad_message(tc_run* run, const char* what) {
  return say(run->message, TC_TROUBLE, "the worker has sent %s", what);
}

/* The descriptor of a message, or -1; *count becomes the number that came. Closes all others. */
static int take_descriptor(struct msghdr* message, size_t* count) {
  int taken = -1;
  *count = 0;
  for (struct cmsghdr* part = CMSG_FIRSTHDR(message); part != NULL;
       part = CMSG_NXTHDR(message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const size_t in_part = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < in_part; ++i) {
      int fd = -1;
      memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
      if ((*count)++ == 0) {
        taken = fd;
      } else {
        close(fd);
      }
    }
  }
  return taken;
}

/* Takes the next message. AGAIN: there is none yet. GONE leaves no message for tc_message. */
static tc_status read_message(tc_run* run, received* into) {
  struct iovec piece = {run->packet, TC_MESSAGE_BYTES};
  union {
    struct cmsghdr alignment;
    char bytes[CMSG_SPACE(ROOM_FOR_DESCRIPTORS * sizeof(int))];
  } control;
  struct msghdr message;
  ssize_t got;
  do {
    memset(&message, 0, sizeof(message));
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    message.msg_control = control.bytes;
    message.msg_controllen = sizeof(control.bytes);
    got = recvmsg(run->socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    /* The kernel reports ECONNRESET once where the worker has not read everything; what the worker
     * had sent can be read after that. */
  } while (got < 0 && (errno == EINTR || errno == ECONNRESET));
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return TC_AGAIN;
  if (got < 0)
    return say(run->message, TC_TROUBLE, "cannot read from the worker: %s", strerror(errno));
  if (got == 0) return TC_GONE;
  size_t descriptors = 0;
  into->fd = take_descriptor(&message, &descriptors);
  if ((size_t)got < sizeof(tc_header) || (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0 ||
      descriptors > 1) {
    if (into->fd >= 0) close(into->fd);
    return bad_message(run, "a message of a wrong size, or with more than one descriptor");
  }
  memcpy(&into->header, run->packet, sizeof(tc_header));
  run->packet[got] = 0;
  into->payload = run->packet + sizeof(tc_header);
  into->size = (size_t)got - sizeof(tc_header);
  return TC_OK;
}

static tc_status gone(tc_run* run) { return say(run->message, TC_GONE, "%s", run->end); }

/* The connection has ended: keeps the reason, which the worker has sent in TC_END (`end`), or NULL
 * where it has sent none. */
static tc_status worker_gone(tc_run* run, const received* end) {
  const int has_reason = end != NULL && end->size > 0;
  run->is_gone = 1;
  say(run->end, TC_GONE, "%s", has_reason ? (const char*)end->payload : "the worker has ended");
  return gone(run);
}

/* The worker reads no more messages: looks for the reason among those that it had sent before. */
static tc_status find_end(tc_run* run) {
  received last;
  tc_status status;
  while ((status = read_message(run, &last)) == TC_OK) {
    if (last.fd >= 0) close(last.fd);
    if (last.header.kind == TC_END) return worker_gone(run, &last);
  }
  return worker_gone(run, NULL);
}

/* Sends a message, with the descriptor fd where that is not -1. AGAIN: the socket is full. */
static tc_status send_message(tc_run* run, tc_header header, const void* payload, size_t size,
                              int fd) {
  if (run->is_gone) return gone(run);
  struct iovec pieces[2] = {{&header, sizeof(header)}, {(void*)payload, size}};
  union {
    struct cmsghdr alignment;
    char bytes[CMSG_SPACE(sizeof(int))];
  } control;
  struct msghdr message;
  memset(&message, 0, sizeof(message));
  memset(&control, 0, sizeof(control));
  message.msg_iov = pieces;
  message.msg_iovlen = size > 0 ? 2 : 1;
  if (fd >= 0) {
    message.msg_control = control.bytes;
    message.msg_controllen = sizeof(control.bytes);
    struct cmsghdr* const rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(rights), &fd, sizeof(int));
  }
  ssize_t sent;
  do {
    sent = sendmsg(run->socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    /* The kernel reports ECONNRESET once, and EPIPE from then on. */
  } while (sent < 0 && (errno == EINTR || errno == ECONNRESET));
  if (sent >= 0) return TC_OK;
  if (errno == EPIPE) return find_end(run);
  if (errno != EAGAIN && errno != EWOULDBLOCK) {
    return say(run->message, TC_TROUBLE, "cannot send to the worker: %s", strerror(errno));
  }
  const tc_status room = wait_for(run, POLLOUT);
  return room == TC_OK ? TC_AGAIN : room;
}

/* Memory files. */

/* Maps all of a memory file, at least `least` bytes, and closes it. The file has to be sealed
 * against shrinking: reading behind the end of a file that has shrunk would kill the process. */
static tc_status map_file(tc_run* run, int fd, int protection, uint64_t least, uint8_t** memory,
                          uint64_t* bytes) {
  if (fd < 0) return bad_message(run, "a message without the memory that belongs to it");
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    close(fd);
    return bad_message(run, "a descriptor that is not a sealed memory file");
  }
  const off_t end = lseek(fd, 0, SEEK_END);
  void* mapped = MAP_FAILED;
  if (end > 0 && (uint64_t)end >= least) {
    mapped = mmap(NULL, (size_t)end, protection, MAP_SHARED, fd, 0);
  } else {
    errno = EINVAL;
  }
  const int error = errno;
  close(fd);
  if (mapped == MAP_FAILED) {
    return say(run->message, TC_TROUBLE, "cannot map the worker's memory: %s", strerror(error));
  }
  *memory = mapped;
  *bytes = (uint64_t)end;
  return TC_OK;
}

/* A memory file of these bytes, sealed against any change. -1: errno says why there is none. */
static int make_file(const void* bytes, uint64_t size) {
  const int fd =
      (int)syscall(SYS_memfd_create, "thermocline-state", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return -1;
  const uint8_t* from = bytes;
  uint64_t done = 0;
  while (done < size) {
    const ssize_t wrote = write(fd, from + done, (size_t)(size - done));
    if (wrote > 0) {
      done += (uint64_t)wrote;
    } else if (wrote == 0 || errno != EINTR) {
      break;
    }
  }
  if (done == size &&
      fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) == 0) {
    return fd;
  }
  const int error = errno;
  close(fd);
  errno = error;
  return -1;
}

/* Connecting. */

/* Reads digits up to `end`; returns the text behind that, or NULL where there are other characters.
 */
static const char* read_number(const char* text, char end, long* number) {
  *number = 0;
  const char* at = text;
  for (; *at >= '0' && *at <= '9' && *number < 1000000000; ++at)
    *number = *number * 10 + (*at - '0');
  if (at == text || *at != end) return NULL;
  return end == 0 ? at : at + 1;
}

/* Finds the socket to the worker that has started this process. */
static tc_status find_socket(int* socket_fd) {
  const char* const text = getenv(TC_ENVIRONMENT);
  if (text == NULL && connected_pid == getpid()) {
    return say(connect_message, TC_REFUSED,
               "this script was connected before, and is connected only once");
  }
  if (text == NULL) {
    return say(connect_message, TC_REFUSED,
               "no worker has started this process: start the script by a job, with worker { "
               "command: [...] }, or use thermocline.local()");
  }
  long fd = 0, pid = 0;
  const char* const behind = read_number(text, ':', &fd);
  if (behind == NULL || read_number(behind, 0, &pid) == NULL) {
    return say(connect_message, TC_REFUSED, TC_ENVIRONMENT " is '%s', and should be FD:PID", text);
  }
  if (pid != (long)getpid()) {
    return say(
        connect_message, TC_REFUSED,
        "the worker has started process %ld as its script, and this is process %ld: only the "
        "process that the worker starts may connect (a shell that starts it needs `exec`)",
        pid, (long)getpid());
  }
  int type = 0;
  socklen_t size = sizeof(type);
  if (getsockopt((int)fd, SOL_SOCKET, SO_TYPE, &type, &size) != 0 || type != SOCK_SEQPACKET) {
    return say(connect_message, TC_REFUSED,
               "descriptor %ld, the connection to the worker, was closed", fd);
  }
  *socket_fd = (int)fd;
  return TC_OK;
}

static void free_run(tc_run* run) {
  for (size_t i = 0; i < TC_MAX_SLOTS; ++i) {
    if (run->slots[i].memory != NULL) munmap(run->slots[i].memory, (size_t)run->slots[i].bytes);
    free(run->slots[i].places);
  }
  if (run->state != NULL) munmap(run->state, (size_t)run->mapped_state_bytes);
  if (run->saved_fd >= 0) close(run->saved_fd);
  free(run->job);
  free(run);
}

/* Takes TC_HELLO, and answers it. */
static tc_status shake_hands(tc_run* run) {
  tc_status status = wait_for(run, POLLIN);
  if (status != TC_OK) return status;
  received hello;
  status = read_message(run, &hello);
  if (status == TC_GONE) return worker_gone(run, NULL);
  if (status != TC_OK) return status;
  if (hello.header.kind != TC_HELLO || hello.header.count != TC_PROTOCOL ||
      strcmp((const char*)hello.payload, THERMOCLINE_VERSION) != 0) {
    if (hello.fd >= 0) close(hello.fd);
    if (hello.header.kind == TC_END) return worker_gone(run, &hello);
    return say(run->message, TC_REFUSED,
               "the worker is of version %.64s and this script's library of " THERMOCLINE_VERSION
               ": both must be of one build; install the package that comes with the programs",
               hello.header.kind == TC_HELLO ? (const char*)hello.payload : "(unknown)");
  }
  uint8_t* file = NULL;
  uint64_t file_bytes = 0;
  const uint64_t size = hello.header.bytes;
  if (size > MAX_JOB_BYTES) {
    if (hello.fd >= 0) close(hello.fd);
    return bad_message(run, "a description of the job of more than 1 GiB");
  }
  status = map_file(run, hello.fd, PROT_READ, size, &file, &file_bytes);
  if (status != TC_OK) return status;
  run->job = malloc((size_t)size + 1);
  if (run->job != NULL) {
    memcpy(run->job, file, (size_t)size);
    run->job[size] = 0;
  }
  munmap(file, (size_t)file_bytes);
  if (run->job == NULL) return say(run->message, TC_TROUBLE, "no memory for the job");
  const tc_header ready = {.kind = TC_READY, .count = TC_PROTOCOL};
  status = send_message(run, ready, THERMOCLINE_VERSION, strlen(THERMOCLINE_VERSION), -1);
  if (status == TC_AGAIN)
    return say(run->message, TC_TROUBLE, "the connection to the worker is full");
  return status;
}

tc_status tc_connect(tc_run** out) {
  *out = NULL;
  int socket_fd = -1;
  tc_status status = find_socket(&socket_fd);
  if (status != TC_OK) return status;
  tc_run* const run = calloc(1, sizeof(tc_run));
  if (run == NULL) return say(connect_message, TC_TROUBLE, "no memory");
  run->socket = socket_fd;
  run->saved_fd = -1;
  run->pid = getpid();
  run->thread = syscall(SYS_gettid);
  status = shake_hands(run);
  if (status != TC_OK) {
    if (status != TC_AGAIN) memcpy(connect_message, run->message, TEXT_BYTES);
    free_run(run);
    return status;
  }
  /* Programs that the script starts have no part in its run. */
  fcntl(socket_fd, F_SETFD, FD_CLOEXEC);
  unsetenv(TC_ENVIRONMENT);
  connected_pid = run->pid;
  *out = run;
  return TC_OK;
}

void tc_close(tc_run* run) {
  if (run == NULL) return;
  close(run->socket); /* A child has a descriptor of its own. */
  free_run(run);
}

/* Events. */

static slot* find_held(tc_run* run, uint32_t number) {
  if (number < TC_MAX_SLOTS && run->slots[number].is_held) return &run->slots[number];
  say(run->message, TC_REFUSED, "batch %u was released, or never came", number);
  return NULL;
}

/* Whether an array lies in its slot's memory, with as many elements as a batch of so many samples
 * has of it. */
static int is_place(const tc_array_place* place, uint64_t slot_bytes, uint64_t samples) {
  const uint64_t element_bytes = place->kind == TC_HAS_GRADIENT ? 1 : 4;
  if (place->offset % ALIGNMENT != 0 || place->offset > slot_bytes ||
      place->count > (slot_bytes - place->offset) / element_bytes) {
    return 0;
  }
  switch (place->kind) {
    case TC_LABELS:
    case TC_WEIGHTS:
    case TC_SCORES_ARRAY:
      return place->count == samples;
    case TC_OFFSETS:
      return place->count == samples + 1;
    case TC_OWN_METRIC:
      return place->count == 1;
    default:
      return 1;
  }
}

static tc_status take_batch(tc_run* run, const received* batch) {
  const tc_header* const header = &batch->header;
  slot* const at = header->slot < TC_MAX_SLOTS ? &run->slots[header->slot] : NULL;
  if (at == NULL || at->is_held || batch->size != header->count * sizeof(tc_array_place) ||
      (batch->fd < 0 && at->memory == NULL)) {
    if (batch->fd >= 0) close(batch->fd);
    return bad_message(run, "a batch with a wrong slot, a wrong count of arrays, or no memory");
  }
  if (batch->fd >= 0) {
    if (at->memory != NULL) munmap(at->memory, (size_t)at->bytes);
    at->memory = NULL;
    const tc_status mapped =
        map_file(run, batch->fd, PROT_READ | PROT_WRITE, 1, &at->memory, &at->bytes);
    if (mapped != TC_OK) return mapped;
  }
  tc_array_place* const places = realloc(at->places, batch->size + 1);
  if (places == NULL) return say(run->message, TC_TROUBLE, "no memory for a batch");
  memcpy(places, batch->payload, batch->size);
  at->places = places;
  for (uint32_t i = 0; i < header->count; ++i) {
    if (!is_place(&places[i], at->bytes, header->bytes)) {
      return bad_message(run, "a batch with an array outside of its memory, or of a wrong size");
    }
  }
  at->count = header->count;
  at->flags = header->flags;
  at->step = header->step;
  at->is_held = 1;
  run->has_open_batch = 1;
  run->open_batch = header->slot;
  return TC_OK;
}

static void drop_state(tc_run* run) {
  if (run->state != NULL) munmap(run->state, (size_t)run->mapped_state_bytes);
  run->state = NULL;
  run->has_state = 0;
  run->state_bytes = 0;
}

static tc_status take_state(tc_run* run, const received* load) {
  const tc_status mapped =
      map_file(run, load->fd, PROT_READ, load->header.bytes, &run->state, &run->mapped_state_bytes);
  if (mapped != TC_OK) return mapped;
  run->state_bytes = load->header.bytes;
  run->has_state = 1;
  return TC_OK;
}

tc_status tc_next(tc_run* run, tc_event* event) {
  memset(event, 0, sizeof(*event));
  tc_status status = check_caller(run);
  if (status != TC_OK) return status;
  if (run->owes_state) {
    return say(run->message, TC_REFUSED, "the worker waits for the state: call tc_save first");
  }
  if (run->has_open_batch) {
    const slot* const open = &run->slots[run->open_batch];
    return say(run->message, TC_REFUSED, "the batch of step %ld is open: call %s first",
               (long)open->step, (open->flags & TC_EVALUATES) != 0 ? "tc_scores" : "tc_step");
  }
  if (run->is_gone) return gone(run);
  drop_state(run);
  status = wait_for(run, POLLIN);
  if (status != TC_OK) return status;
  received message;
  status = read_message(run, &message);
  if (status == TC_GONE) return worker_gone(run, NULL);
  if (status != TC_OK) return status;
  const tc_header* const header = &message.header;
  if (header->kind != TC_BATCH && header->kind != TC_LOAD && message.fd >= 0) close(message.fd);
  event->slot = header->slot;
  event->step = header->step;
  event->size = header->bytes;
  switch (header->kind) {
    case TC_BATCH:
      event->kind = (header->flags & TC_EVALUATES) != 0 ? TC_EVENT_EVALUATION : TC_EVENT_BATCH;
      return take_batch(run, &message);
    case TC_SAVE:
      event->kind = TC_EVENT_SAVE;
      run->owes_state = 1;
      return TC_OK;
    case TC_LOAD:
      event->kind = TC_EVENT_LOAD;
      return take_state(run, &message);
    case TC_PHASE:
      event->kind = TC_EVENT_PHASE;
      event->text = (const char*)message.payload;
      return TC_OK;
    case TC_END:
      return worker_gone(run, &message);
    default:
      return say(run->message, TC_TROUBLE, "the worker has sent a message of the unknown kind %u",
                 header->kind);
  }
}

tc_status tc_array(tc_run* run, uint32_t number, uint32_t kind, uint32_t index, void** data,
                   uint64_t* count) {
  *data = NULL;
  *count = 0;
  const tc_status may = check_caller(run);
  if (may != TC_OK) return may;
  const slot* const at = find_held(run, number);
  if (at == NULL) return TC_REFUSED;
  for (uint32_t i = 0; i < at->count; ++i) {
    const tc_array_place* const place = &at->places[i];
    if (place->kind != kind || place->index != index) continue;
    *data = at->memory + place->offset;
    *count = place->count;
    return TC_OK;
  }
  return say(run->message, TC_REFUSED, "the batch of step %ld has no array of kind %u and index %u",
             (long)at->step, kind, index);
}

tc_status tc_loaded(tc_run* run, const void** bytes, uint64_t* size) {
  *bytes = NULL;
  *size = 0;
  const tc_status may = check_caller(run);
  if (may != TC_OK) return may;
  if (!run->has_state) {
    return say(run->message, TC_REFUSED, "the last event has brought no state");
  }
  if (run->state_bytes > 0) *bytes = run->state;
  *size = run->state_bytes;
  return TC_OK;
}

/* Answers. */

static tc_status answer_batch(tc_run* run, uint32_t number, tc_header header) {
  const tc_status may = check_caller(run);
  if (may != TC_OK) return may;
  const slot* const at = find_held(run, number);
  if (at == NULL) return TC_REFUSED;
  if (!run->has_open_batch || run->open_batch != number) {
    return say(run->message, TC_REFUSED, "the batch of step %ld was answered before",
               (long)at->step);
  }
  const int evaluates = (at->flags & TC_EVALUATES) != 0;
  if (evaluates != (header.kind == TC_SCORES)) {
    return say(run->message, TC_REFUSED, "the batch of step %ld is to be %s", (long)at->step,
               evaluates ? "scored, and not trained" : "trained, and not scored");
  }
  header.slot = number;
  header.step = at->step;
  const tc_status sent = send_message(run, header, NULL, 0, -1);
  if (sent == TC_OK) run->has_open_batch = 0;
  return sent;
}

tc_status tc_step(tc_run* run, uint32_t number, double loss_sum, float rate, uint32_t flags) {
  const tc_header header = {.kind = TC_STEP, .value = loss_sum, .rate = rate, .flags = flags};
  return answer_batch(run, number, header);
}

tc_status tc_scores(tc_run* run, uint32_t number) {
  const tc_header header = {.kind = TC_SCORES};
  return answer_batch(run, number, header);
}

tc_status tc_release(tc_run* run, uint32_t number) {
  const tc_status may = check_caller(run);
  if (may != TC_OK) return may;
  slot* const at = find_held(run, number);
  if (at == NULL) return TC_REFUSED;
  if (run->has_open_batch && run->open_batch == number) {
    return say(run->message, TC_REFUSED, "the batch of step %ld was not answered yet",
               (long)at->step);
  }
  const tc_header header = {.kind = TC_RELEASE, .slot = number, .step = at->step};
  const tc_status sent = send_message(run, header, NULL, 0, -1);
  if (sent == TC_OK) at->is_held = 0;
  return sent;
}

tc_status tc_save(tc_run* run, const void* bytes, uint64_t size) {
  const tc_status may = check_caller(run);
  if (may != TC_OK) return may;
  if (!run->owes_state) {
    return say(run->message, TC_REFUSED, "the worker has asked for no state");
  }
  if (run->saved_fd >= 0 && run->saved_bytes != size) {
    return say(run->message, TC_REFUSED,
               "tc_save began with %llu bytes, and now has %llu: call it again with the same",
               (unsigned long long)run->saved_bytes, (unsigned long long)size);
  }
  if (run->saved_fd < 0) {
    run->saved_fd = make_file(bytes, size);
    run->saved_bytes = size;
  }
  if (run->saved_fd < 0) {
    return say(run->message, TC_TROUBLE, "no memory for a state of %llu bytes: %s",
               (unsigned long long)size, strerror(errno));
  }
  const tc_header header = {.kind = TC_STATE, .bytes = size};
  const tc_status sent = send_message(run, header, NULL, 0, run->saved_fd);
  if (sent == TC_AGAIN) return sent;
  close(run->saved_fd);
  run->saved_fd = -1;
  if (sent == TC_OK) run->owes_state = 0;
  return sent;
}

/* Sends a message with a text; of a text that is too long, its end. */
static tc_status tell(tc_run* run, uint32_t kind, const char* text) {
  const tc_status may = check_caller(run);
  if (may != TC_OK) return may;
  size_t size = text == NULL ? 0 : strlen(text);
  if (size > TC_PAYLOAD_BYTES) {
    text += size - TC_PAYLOAD_BYTES;
    size = TC_PAYLOAD_BYTES;
  }
  const tc_header header = {.kind = kind, .bytes = size};
  return send_message(run, header, text, size, -1);
}

tc_status tc_evaluate(tc_run* run) { return tell(run, TC_EVALUATE, NULL); }
tc_status tc_fail(tc_run* run, const char* text) { return tell(run, TC_FAILED, text); }
tc_status tc_warn(tc_run* run, const char* text) { return tell(run, TC_WARNING, text); }
tc_status tc_done(tc_run* run) { return tell(run, TC_DONE, NULL); }
