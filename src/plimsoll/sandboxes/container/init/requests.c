/* What the host asked for: a child that works on it, its streams, and its END. */
#include "plimsoll.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static struct request *requests;

struct request *request_new(uint32_t number, uint8_t kind)
{
    struct request *request = calloc(1, sizeof *request);
    if (!request) {
        send_end(number, "error", "the sandbox's init has no memory left");
        return NULL;
    }
    request->number = number;
    request->kind = kind;
    request->report = request->in.fd = request->out.fd = request->err.fd = -1;
    request->in.slot = request->out.slot = request->err.slot = -1;
    request->next = requests;
    requests = request;
    return request;
}

struct request *request_find(uint32_t number)
{
    struct request *request = requests;
    while (request && request->number != number)
        request = request->next;
    return request;
}

static void close_outlet(struct outlet *outlet)
{
    if (outlet->fd >= 0)
        close(outlet->fd);
    outlet->fd = -1;
    outlet->left = 0;
}

/* The number is done with; the pipes are read on until they end, so that what was left running
 * neither blocks nor dies of a closed pipe. */
static void answered(struct request *request)
{
    request->number = 0;
    inlet_close(&request->in);
    if (request->report >= 0)
        close(request->report);
    request->report = -1;
}

void request_answer(struct request *request, const char *key, const char *value)
{
    send_end(request->number, key, value);
    answered(request);
}

/* Streams a request of this kind has. */
static int streams_of(uint8_t kind)
{
    switch (kind) {
    case EXEC: return WITH_IN | WITH_OUT | WITH_ERR;
    case PACK: return WITH_OUT;
    case UNPACK: return WITH_IN;
    default: return 0;
    }
}

struct ends {
    int in, out, err, report; /* the child's */
};

static bool open_pipe(int *ours, int *theirs, bool we_write)
{
    int both[2];
    if (pipe2(both, O_CLOEXEC) < 0)
        return false;
    *ours = both[we_write];
    *theirs = both[!we_write];
    note_descriptor(both[0]);
    note_descriptor(both[1]);
    return fcntl(*ours, F_SETFL, O_NONBLOCK) == 0;
}

static bool open_streams(struct request *request, struct ends *ends)
{
    int streams = streams_of(request->kind), input = -1, both[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, both) < 0)
        return false;
    request->report = both[0];
    ends->report = both[1];
    note_descriptor(both[0]);
    note_descriptor(both[1]);
    if (streams & WITH_IN) {
        if (!open_pipe(&input, &ends->in, true))
            return false;
        inlet_open(&request->in, input, false);
    }
    return !((streams & WITH_OUT && !open_pipe(&request->out.fd, &ends->out, false)) ||
             (streams & WITH_ERR && !open_pipe(&request->err.fd, &ends->err, false)));
}

static void close_ends(const struct ends *ends)
{
    const int all[] = {ends->in, ends->out, ends->err, ends->report};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i] >= 0)
            close(all[i]);
}

/* A command that no process can be had for ends as one that could not be run. */
static void could_not_start(struct request *request, int error)
{
    char words[256];
    close_outlet(&request->out);
    close_outlet(&request->err);
    if (request->kind == EXEC && error == EAGAIN) {
        snprintf(words, sizeof words, "plimsoll: the sandbox's limit on processes is used up\n");
        send_frame(ERR, request->number, words, strlen(words));
        request_answer(request, "exit", "126");
        return;
    }
    snprintf(words, sizeof words, "no process for it could be started: %s", strerror(error));
    request_answer(request, "error", words);
}

void request_start(struct request *request, work *work, char *payload, size_t size)
{
    struct ends ends = {-1, -1, -1, -1};
    if (open_streams(request, &ends))
        request->child = spawn(ends.in, ends.out, ends.err, ends.report, work, payload, size);
    else
        request->child = -1;
    int error = errno;
    close_ends(&ends);
    if (request->child < 0) {
        request->child = 0;
        could_not_start(request, error);
    }
}

void request_kill(struct request *request, const char *failure)
{
    if (failure && !request->failure)
        request->failure = failure;
    if (request->child && !request->ended)
        kill_begin(&request->killing, request->child);
}

static void watch_outlet(const struct request *request, struct outlet *outlet)
{
    bool wanted = outlet->fd >= 0;
    if (request->number)
        wanted = wanted && !host_is_behind() && !(request->ended && !outlet->left);
    outlet->slot = wanted ? watch(outlet->fd, POLLIN) : -1;
}

void requests_watch(void)
{
    for (struct request *request = requests; request; request = request->next) {
        watch_outlet(request, &request->out);
        watch_outlet(request, &request->err);
        inlet_watch(&request->in);
        if (request->killing.phase != UNHURT && !request->ended)
            wake_within(1);
    }
}

static void serve_outlet(const struct request *request, struct outlet *outlet, uint8_t kind)
{
    static char dropped[DATA_BYTES];
    if (outlet->fd < 0 || !seen(outlet->slot))
        return;
    size_t most = DATA_BYTES;
    if (request->ended && request->number && (size_t)outlet->left < most)
        most = (size_t)outlet->left;
    ssize_t got;
    if (!request->number)
        got = read(outlet->fd, dropped, sizeof dropped);
    else if (most && !host_is_behind())
        got = send_from(outlet->fd, kind, request->number, most);
    else
        return;
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
        close_outlet(outlet);
    else if (got > 0 && request->ended)
        outlet->left -= (int)got;
}

/* What is in the pipes right now was printed by the command, or before it ended. */
static void mark_end(struct request *request)
{
    request->ended = true;
    struct outlet *outlets[] = {&request->out, &request->err};
    for (int i = 0; i < 2; i++) {
        outlets[i]->left = 0;
        if (outlets[i]->fd >= 0 && ioctl(outlets[i]->fd, FIONREAD, &outlets[i]->left) < 0)
            close_outlet(outlets[i]);
    }
}

/* The child's report, and the manifest where one came with it. */
static ssize_t read_report(const struct request *request, char *words, size_t room)
{
    union {
        struct cmsghdr head;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec into = {.iov_base = words, .iov_len = room};
    struct msghdr message = {.msg_iov = &into, .msg_iovlen = 1};
    message.msg_control = control.bytes;
    message.msg_controllen = sizeof control.bytes;
    ssize_t got = recvmsg(request->report, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    struct cmsghdr *head = got > 0 ? CMSG_FIRSTHDR(&message) : NULL;
    if (head && head->cmsg_type == SCM_RIGHTS) {
        if (manifest_fd >= 0)
            close(manifest_fd);
        memcpy(&manifest_fd, CMSG_DATA(head), sizeof(int));
        note_descriptor(manifest_fd);
    }
    return got;
}

static void finish(struct request *request)
{
    static char words[REPORT_BYTES];
    ssize_t got = read_report(request, words, sizeof words);
    if (request->failure) {
        request_answer(request, "error", request->failure);
    } else if (got > 0) {
        send_frame(END, request->number, words, (size_t)got);
        answered(request);
    } else {
        /* One that said nothing was killed from inside, or for the host. */
        request_answer(request, "signal", "9");
    }
}

/* A request that waits for all processes to be dead. */
static void go_on_after_everything(struct request *request)
{
    if (everything_runs())
        return;
    if (!everything_died())
        request_answer(request, "error", "processes in it do not die");
    else if (request->kind == KILL_ALL)
        request_answer(request, "done", "1");
    else
        request_start(request, run_reset, NULL, 0);
}

static void serve_number(struct request *request)
{
    bool waits = request->kind == KILL_ALL || request->kind == RESET;
    if (waits && request->report < 0) {
        go_on_after_everything(request);
        return;
    }
    bool hurt = request->killing.phase != UNHURT;
    if (!request->ended) {
        bool over = hurt ? kill_step(&request->killing, request->child) : !request->child;
        if (over)
            mark_end(request);
    }
    bool drained = !request->out.left && !request->err.left;
    if (request->ended && drained && room_for(REPORT_BYTES))
        finish(request);
}

static bool is_over(const struct request *request)
{
    return !request->number && !request->child && request->out.fd < 0 && request->err.fd < 0;
}

void requests_serve(void)
{
    struct request **link = &requests;
    while (*link) {
        struct request *request = *link;
        serve_outlet(request, &request->out, OUT);
        serve_outlet(request, &request->err, ERR);
        inlet_serve(&request->in, request->number);
        if (request->number)
            serve_number(request);
        if (is_over(request)) {
            *link = request->next;
            free(request);
        } else {
            link = &request->next;
        }
    }
}

void requests_reap(void)
{
    for (pid_t pid; (pid = waitpid(-1, NULL, WNOHANG)) > 0;)
        for (struct request *request = requests; request; request = request->next)
            if (request->child == pid)
                request->child = 0;
}
