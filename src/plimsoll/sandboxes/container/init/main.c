/* Pid 1: its loop. It ends when the host's stream does, and the kernel then kills the rest. */
#include "plimsoll.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST_INHERITED = 256 };

static int signals;

static _Noreturn void give_up(const char *why)
{
    (void)!write(STDERR_FILENO, "plimsoll-init: ", 15);
    (void)!write(STDERR_FILENO, why, strlen(why));
    (void)!write(STDERR_FILENO, "\n", 1);
    _exit(2);
}

static void open_signals(void)
{
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    signal(SIGPIPE, SIG_IGN);
    sigset_t wanted;
    sigemptyset(&wanted);
    sigaddset(&wanted, SIGCHLD);
    sigaddset(&wanted, SIGTERM);
    /* Takes descriptor 3, the first free one, for good: no pipe gets a number below 4. */
    for (int fd = REPORT_FD; fd < MOST_INHERITED; fd++)
        close(fd);
    signals = signalfd(-1, &wanted, SFD_NONBLOCK | SFD_CLOEXEC);
    if (signals != REPORT_FD)
        give_up("its signals cannot be read");
}

static void prepare(void)
{
    /* Killing is done with a signal to all processes: elsewhere it would hit the host. */
    if (getpid() != 1)
        give_up("it runs as a sandbox's pid 1 only");
    /* Nobody without CAP_SYS_PTRACE opens our descriptors by way of /proc/1/fd. */
    prctl(PR_SET_DUMPABLE, 0);
    open_signals();
    remember_limits();
    umask(022);
    if (chdir("/") < 0)
        give_up("the root cannot be entered");
    fcntl(STDIN_FILENO, F_SETFL, fcntl(STDIN_FILENO, F_GETFL) | O_NONBLOCK);
    fcntl(STDOUT_FILENO, F_SETFL, fcntl(STDOUT_FILENO, F_GETFL) | O_NONBLOCK);
    fcntl(STDERR_FILENO, F_SETFL, fcntl(STDERR_FILENO, F_GETFL) | O_NONBLOCK);
}

static void say_ready(void)
{
    static struct fields fields;
    add_pair(&fields, "plimsoll-init", "1");
    send_frame(READY, 0, fields.bytes, fields.used);
}

/* Ends init when asked to from outside its pid namespace; from inside nobody may. A sender
 * inside can forge the number of the sender only together with another code than kill's. */
static void serve_signals(void)
{
    struct signalfd_siginfo info;
    while (read(signals, &info, sizeof info) == sizeof info)
        if (info.ssi_signo == SIGTERM && info.ssi_code == SI_USER && info.ssi_pid == 0)
            _exit(0);
    requests_reap();
}

static void serve_data(const struct frame *frame)
{
    struct request *request = request_find(frame->number);
    if (!request) {
        tunnels_data(frame->number, frame->payload, frame->size);
    } else if (!frame->size) {
        inlet_end(&request->in);
    } else if (!inlet_take(&request->in, frame->payload, frame->size)) {
        inlet_close(&request->in);
        request_kill(request, "its input could not be held");
    }
}

static void begin(const struct frame *frame, work *work)
{
    struct request *request = request_new(frame->number, frame->kind);
    if (request && work)
        request_start(request, work, frame->payload, frame->size);
    else if (request)
        everything_begin();
}

static void serve_frame(const struct frame *frame)
{
    struct request *request;
    uint32_t credit;
    if (frame->size && !frame->payload) {
        send_end(frame->number, "error", "the sandbox's init has no memory for this request");
        return;
    }
    switch (frame->kind) {
    case DATA: serve_data(frame); break;
    case EXEC: begin(frame, run_command); break;
    case PACK: begin(frame, run_pack); break;
    case UNPACK: begin(frame, run_unpack); break;
    case EMPTY: begin(frame, run_empty); break;
    case BASELINE: begin(frame, run_baseline); break;
    case RESET: case KILL_ALL: begin(frame, NULL); break;
    case STATUS: send_status(frame->number); break;
    case LISTEN: tunnels_listen(frame->number, frame->payload, frame->size); break;
    case CLOSE: tunnels_close(frame->number); break;
    case KILL:
        if ((request = request_find(frame->number)))
            request_kill(request, NULL);
        break;
    case CREDIT:
        if (frame->size == sizeof credit) {
            memcpy(&credit, frame->payload, sizeof credit);
            tunnels_credit(frame->number, credit);
        }
        break;
    default:
        send_end(frame->number, "error", "init does not know this request");
    }
}

/* Requests wait while everything is being killed: what they start must not be hit. */
static void serve_frames(void)
{
    struct frame frame;
    while (!everything_runs() && !host_is_far_behind() && host_frame(&frame)) {
        serve_frame(&frame);
        host_frame_done(&frame);
    }
}

static void serve_round(void)
{
    watch_nothing();
    bool deaf = everything_runs() || host_is_far_behind();
    everything_step();
    int from = watch(STDIN_FILENO, deaf ? 0 : POLLIN);
    int to = host_waits() ? watch(STDOUT_FILENO, POLLOUT) : -1;
    int signalled = watch(signals, POLLIN);
    requests_watch();
    tunnels_watch();
    watch_wait();
    if (seen(signalled))
        serve_signals();
    bool gone = deaf && seen(from) & (POLLHUP | POLLERR);
    if (!deaf && seen(from))
        gone = !host_read();
    if (gone || (seen(to) && !host_flush()))
        _exit(0);
    serve_frames();
    requests_serve();
    tunnels_serve();
    if (!host_flush())
        _exit(0);
}

int main(void)
{
    prepare();
    say_ready();
    for (;;)
        serve_round();
}
