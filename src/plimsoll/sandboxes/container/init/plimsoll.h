/* Plimsoll's init: pid 1 of a container, spoken to by frames over its stdin and stdout.
 *
 * It is one thread around poll(). Whatever may wait for a file system or a command happens in
 * a child, so that nothing in the sandbox can hold init up. What the host sends is trusted;
 * what the sandbox holds (names, links, accounts, depths) is not.
 */
#ifndef PLIMSOLL_H
#define PLIMSOLL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

/* Frames from the host. */
enum {
    EXEC = 1, DATA, KILL, KILL_ALL, STATUS, UNPACK, PACK, EMPTY, LISTEN, CREDIT, CLOSE, BASELINE,
    RESET,
};

/* Frames to the host. */
enum { READY = 64, OUT, ERR, END, CONNECT, CREDITED, CLOSED };

enum {
    HEADER_BYTES = 9,
    DATA_BYTES = 65536,           /* a data frame's payload, at most */
    REQUEST_BYTES = 64 << 20,     /* a request's payload, at most */
    CREDIT_BYTES = 262144,        /* unacknowledged bytes of one number, at most */
    REPORT_BYTES = 32 << 10,      /* an END's payload, at most */
};

/* wire.c: the two ends of the host's stream. */

struct frame {
    uint8_t kind;
    uint32_t number;
    char *payload; /* one byte after its end may be written; NULL if there was no memory */
    size_t size;
};

bool host_read(void);                    /* false: the host is gone */
bool host_frame(struct frame *frame);    /* false: no whole frame is there */
void host_frame_done(struct frame *frame);
bool host_flush(void);                   /* false: the host is gone */
bool host_is_behind(void);               /* output of commands has to wait */
bool host_is_far_behind(void);           /* requests have to wait too */
bool host_waits(void);                   /* there are bytes to flush */
bool room_for(size_t payload);
void send_frame(uint8_t kind, uint32_t number, const void *payload, size_t size);
void send_number(uint8_t kind, uint32_t number, uint32_t value);
ssize_t send_from(int fd, uint8_t kind, uint32_t number, size_t most);

/* fields.c: sequences of (u32 length, bytes). */

struct fields {
    size_t used;
    char bytes[REPORT_BYTES];
};

void add_bytes(struct fields *fields, const char *bytes, size_t size);
void add_text(struct fields *fields, const char *text);
void add_pair(struct fields *fields, const char *key, const char *value);
void add_count(struct fields *fields, const char *key, unsigned long long value);
void add_error(struct fields *fields, const char *key, const char *form, ...)
    __attribute__((format(printf, 3, 4)));
void send_end(uint32_t number, const char *key, const char *value);

/* Make C strings of a payload's fields, in place; how many, or -1 where it makes no sense. */
long split_fields(char *payload, size_t size, char ***strings);

/* watch.c: what one round of the loop waits for. */

void watch_nothing(void);
int watch(int fd, short events);         /* a slot to ask `seen` about */
short seen(int slot);
void wake_within(int64_t milliseconds);
bool watch_wait(void);
int64_t now_ms(void);

/* inlets.c: bytes of the host on their way to a pipe or a socket. */

struct inlet {
    int fd;                              /* -1: closed, what comes is dropped */
    int slot;
    bool is_socket;
    bool ending;                         /* the host has sent all */
    struct chunk *first, *last;
    size_t held;
    uint32_t owed;                       /* consumed bytes the host was not told of */
};

void inlet_open(struct inlet *inlet, int fd, bool is_socket);
bool inlet_take(struct inlet *inlet, const char *bytes, size_t size);
void inlet_end(struct inlet *inlet);
void inlet_watch(struct inlet *inlet);
void inlet_serve(struct inlet *inlet, uint32_t number);
void inlet_drop(struct inlet *inlet);    /* forget what is held; the descriptor is not closed */
void inlet_close(struct inlet *inlet);

/* killing.c: a request's processes, to the last one; or all of them. */

struct process {
    pid_t pid, parent;
    bool alive, below;
};

struct look {
    struct process *all;
    size_t count, room;
};

struct killing {
    enum { UNHURT, STOPPING, CATCHING, FADING, EVERYTHING } phase;
    int64_t deadline;
    struct look below;
};

void kill_begin(struct killing *killing, pid_t runner);
bool kill_step(struct killing *killing, pid_t runner); /* true: done */
void everything_begin(void);
bool everything_runs(void);
void everything_step(void);
bool everything_died(void);              /* how the last one went */
long count_processes(void);

/* requests.c: what the host asked for and has no END of yet. */

struct outlet {
    int fd;
    int slot;
    int left;                            /* of an ended request: bytes that still belong to it */
};

struct request {
    struct request *next;
    uint32_t number;                     /* 0: answered; what others still print is dropped */
    uint8_t kind;
    pid_t child;                         /* 0: none, or reaped */
    bool ended;
    int report;
    const char *failure;                 /* what END says instead of the child's report */
    struct inlet in;
    struct outlet out, err;
    struct killing killing;
};

typedef void work(char *payload, size_t size);

struct request *request_new(uint32_t number, uint8_t kind);
struct request *request_find(uint32_t number);
void request_start(struct request *request, work *work, char *payload, size_t size);
void request_answer(struct request *request, const char *key, const char *value);
void request_kill(struct request *request, const char *failure);
void requests_watch(void);
void requests_serve(void);
void requests_reap(void);

/* children.c: in a child of init. Its streams are 0, 1 and 2, its report goes to 3. */

enum { WITH_IN = 1, WITH_OUT = 2, WITH_ERR = 4, REPORT_FD = 3 };

extern int manifest_fd;                  /* the baseline, -1 where none was taken */

void note_descriptor(int fd);
pid_t spawn(int in, int out, int err, int report, work *work, char *payload, size_t size);
_Noreturn void report_and_exit(const struct fields *fields, int handed_over);
_Noreturn void fail_and_exit(const char *form, ...) __attribute__((format(printf, 1, 2)));
void start_like_init(void);              /* a command gets the limits init was started with */
void remember_limits(void);
size_t most_descriptors(void);           /* that init may have open */
void offer_to_oom_killer(void);

/* accounts.c */

struct account {
    uid_t uid;
    gid_t gid;
    const gid_t *groups;
    size_t group_count;
    const char *home, *name;
};

bool find_account(char *user, struct account *account, struct fields *why);

/* What children do. */

void run_command(char *payload, size_t size);
void run_pack(char *payload, size_t size);
void run_unpack(char *payload, size_t size);
void run_empty(char *payload, size_t size);
void run_baseline(char *payload, size_t size);
void run_reset(char *payload, size_t size);

/* names.c: what stands in a folder, in order. */

struct names {
    char **all;
    size_t count;
};

int open_folder(int parent, const char *name);             /* never by way of a link */
bool list_names(int folder, struct names *names);          /* false: errno says why */
void free_names(struct names *names);
bool stays_inside(const char *to, size_t depth);

/* removal.c: remove an entry of an open folder and all below it; 0 or an errno. */

int remove_tree(int parent, const char *name);

/* mounts.c: places at which a walk over the file system stops or takes other rules. */

struct border {
    char *path;
    enum { LEFT_OUT, WALKED, WALKED_FOR_GOOD } rule;
};

struct borders {
    struct border *all;
    size_t count;
};

bool read_borders(struct borders *borders);
bool add_border(struct borders *borders, const char *path, int rule);
const struct border *border_at(const struct borders *borders, const char *path);

/* siphash.c: a hash that nobody can aim at without its key. */

uint64_t siphash(const uint64_t key[2], const void *bytes, size_t size);

/* walk.c: the file system of the sandbox, entry by entry. */

enum met { GO_ON, PASS_OVER, STOP };

struct walk;
struct place;
typedef enum met meet(struct walk *walk, const struct place *place);
typedef bool leave(const struct place *place, int folder); /* after all that stands in it */

struct walk {
    uint64_t key[2];
    struct borders borders;
    struct timespec latest;              /* change of any entry */
    meet *meet;
    leave *leave;                        /* NULL: nothing is done */
    char path[64 << 10];
};

struct place {
    int parent;                          /* the folder it is in, open */
    const char *name;
    uint64_t path, state;                /* hashes: where it is, and what it is */
    struct timespec atime, mtime;        /* of a folder: what no hash has of it */
    int64_t size;
    bool removable;
};

bool walk_all(struct walk *walk);        /* false: stopped, or errno says why */

/* tunnels.c: connections accepted in the sandbox. */

void tunnels_listen(uint32_t number, char *payload, size_t size);
void tunnels_data(uint32_t number, const char *bytes, size_t size);
void tunnels_credit(uint32_t number, uint32_t bytes);
void tunnels_close(uint32_t number);
void tunnels_watch(void);
void tunnels_serve(void);

/* status.c */

void send_status(uint32_t number);

#endif
