/* Children of init: how they start, and how they say what became of their work. */
#include "plimsoll.h"

#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

int manifest_fd = -1;

static int highest_descriptor = REPORT_FD;
static struct rlimit open_files;

/* A command sees the limit that the container was started with; init takes what it can. */
void remember_limits(void)
{
    if (getrlimit(RLIMIT_NOFILE, &open_files) < 0)
        return;
    struct rlimit most = {.rlim_cur = open_files.rlim_max, .rlim_max = open_files.rlim_max};
    setrlimit(RLIMIT_NOFILE, &most);
}

size_t most_descriptors(void)
{
    return open_files.rlim_max;
}

void start_like_init(void)
{
    /* By the kernel's own call: the C library would leave out the signals it keeps to itself. */
    static const unsigned long by_default[4];
    sigset_t none;
    for (int number = 1; number < NSIG; number++)
        syscall(SYS_rt_sigaction, number, by_default, NULL, sizeof(unsigned long));
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    if (open_files.rlim_max)
        setrlimit(RLIMIT_NOFILE, &open_files);
}

/* Memory pressure in the sandbox falls on its commands, not on its init. */
void offer_to_oom_killer(void)
{
    int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (fd >= 0) {
        (void)!write(fd, "500", 3);
        close(fd);
    }
}

void note_descriptor(int fd)
{
    if (fd > highest_descriptor)
        highest_descriptor = fd;
}

/* Other requests' pipes stay open in nobody but init, or they would never end. */
static void close_the_rest(void)
{
    for (int fd = REPORT_FD + 1; fd <= highest_descriptor; fd++)
        if (fd != manifest_fd)
            close(fd);
}

pid_t spawn(int in, int out, int err, int report, work *work, char *payload, size_t size)
{
    pid_t pid = fork();
    if (pid)
        return pid;
    /* What a child has no use for must not be the host's stream. */
    dup2(in < 0 ? report : in, STDIN_FILENO);
    dup2(out < 0 ? report : out, STDOUT_FILENO);
    dup2(err < 0 ? report : err, STDERR_FILENO);
    dup3(report, REPORT_FD, O_CLOEXEC);
    close_the_rest();
    if (work != run_command) /* a runner must stay as long as its command does */
        offer_to_oom_killer();
    work(payload, size);
    _exit(0);
}

_Noreturn void report_and_exit(const struct fields *fields, int handed_over)
{
    union {
        struct cmsghdr head;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec words = {.iov_base = (void *)fields->bytes, .iov_len = fields->used};
    struct msghdr message = {.msg_iov = &words, .msg_iovlen = 1};
    if (handed_over >= 0) {
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof control.bytes;
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(head), &handed_over, sizeof(int));
    }
    sendmsg(REPORT_FD, &message, MSG_NOSIGNAL);
    _exit(0);
}

_Noreturn void fail_and_exit(const char *form, ...)
{
    static struct fields fields;
    char text[4096];
    va_list list;
    va_start(list, form);
    vsnprintf(text, sizeof text, form, list);
    va_end(list);
    fields.used = 0;
    add_pair(&fields, "error", text);
    report_and_exit(&fields, -1);
}
