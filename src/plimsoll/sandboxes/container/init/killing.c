/* Killing: a request's processes to the last one, or everything.
 *
 * Nothing here waits: it goes in steps, between which init serves the others.
 */
#include "plimsoll.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CATCH_MS = 1000, GONE_MS = 10000, STEP_MS = 20, NAP_US = 100 };

static struct {
    bool runs, died;
    int64_t deadline;
} everything;

static bool read_stat(const char *pid, char *state, struct process *process)
{
    char path[64], text[1024];
    int threads = 0, parent = 0;
    snprintf(path, sizeof path, "/proc/%.20s/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    if (got <= 0)
        return false;
    text[got] = 0;
    /* The name in brackets may hold anything; what follows the last one is fixed. */
    const char *rest = strrchr(text, ')');
    static const char form[] =
        " %c %d %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %d";
    if (!rest || sscanf(rest + 1, form, state, &parent, &threads) != 3)
        return false;
    /* Its first thread may have ended while others go on. */
    bool dead = (*state == 'Z' || *state == 'X') && threads <= 1;
    *process = (struct process){.pid = atoi(pid), .parent = parent, .alive = !dead};
    return true;
}

static bool stands_still(pid_t pid)
{
    char number[16], state;
    struct process process;
    snprintf(number, sizeof number, "%d", (int)pid);
    return !read_stat(number, &state, &process) || strchr("TtZX", state);
}

static bool is_number(const char *name)
{
    return name[0] >= '1' && name[0] <= '9';
}

long count_processes(void)
{
    long count = 0;
    DIR *folder = opendir("/proc");
    if (!folder)
        return -1;
    for (struct dirent *entry; (entry = readdir(folder));)
        count += is_number(entry->d_name) && strcmp(entry->d_name, "1") != 0;
    closedir(folder);
    return count;
}

static bool add_process(struct look *look, const struct process *process)
{
    if (look->count == look->room) {
        size_t larger = look->room ? look->room * 2 : 256;
        struct process *grown = realloc(look->all, larger * sizeof *grown);
        if (!grown)
            return false;
        look->all = grown;
        look->room = larger;
    }
    look->all[look->count++] = *process;
    return true;
}

static int by_pid(const void *left, const void *right)
{
    const struct process *a = left, *b = right;
    return (a->pid > b->pid) - (a->pid < b->pid);
}

static bool is_below(const struct look *look, pid_t pid)
{
    const struct process wanted = {.pid = pid};
    const struct process *found =
        bsearch(&wanted, look->all, look->count, sizeof *look->all, by_pid);
    return found && found->below;
}

/* A process mostly has a higher number than its parent, so that few rounds are needed. */
static void mark_below(struct look *look, pid_t ancestor)
{
    for (bool grown = true; grown;) {
        grown = false;
        for (size_t i = 0; i < look->count; i++) {
            struct process *one = &look->all[i];
            if (!one->below && (one->parent == ancestor || is_below(look, one->parent)))
                grown = one->below = true;
        }
    }
}

/* Every process below another, and whether any thread of it is alive; in order of number. */
static bool look_below(struct look *look, pid_t ancestor)
{
    DIR *folder = opendir("/proc");
    if (!folder)
        return false;
    bool whole = true;
    for (struct dirent *entry; whole && (entry = readdir(folder));) {
        struct process process;
        char state;
        if (is_number(entry->d_name) && read_stat(entry->d_name, &state, &process))
            whole = add_process(look, &process);
    }
    closedir(folder);
    qsort(look->all, look->count, sizeof *look->all, by_pid);
    mark_below(look, ancestor);
    size_t kept = 0;
    for (size_t i = 0; i < look->count; i++)
        if (look->all[i].below)
            look->all[kept++] = look->all[i];
    look->count = kept;
    return whole;
}

static void forget(struct look *look)
{
    free(look->all);
    *look = (struct look){0};
}

static bool kill_alive(const struct look *look)
{
    bool any = false;
    for (size_t i = 0; i < look->count; i++) {
        if (look->all[i].alive) {
            kill(look->all[i].pid, SIGKILL);
            any = true;
        }
    }
    return any;
}

static bool same(const struct look *left, const struct look *right)
{
    if (left->count != right->count)
        return false;
    for (size_t i = 0; i < left->count; i++)
        if (left->all[i].pid != right->all[i].pid || left->all[i].alive != right->all[i].alive)
            return false;
    return true;
}

void kill_begin(struct killing *killing, pid_t runner)
{
    if (killing->phase != UNHURT)
        return;
    /* Stopped first: a stopped subreaper still adopts, and what died below it stays as a
     * zombie. Nothing is looked at before it stands still: it may be in the middle of a fork. */
    kill(runner, SIGSTOP);
    killing->phase = STOPPING;
    killing->deadline = now_ms() + CATCH_MS;
}

/* What forks faster than it can be caught takes the others with it: a signal to all processes
 * at once leaves none of them the time to fork. */
static void give_up_catching(struct killing *killing)
{
    forget(&killing->below);
    killing->phase = EVERYTHING;
    everything_begin();
}

static void fade(struct killing *killing, pid_t runner)
{
    kill(runner, SIGKILL);
    killing->phase = FADING;
    killing->deadline = now_ms() + GONE_MS;
}

/* When two looks in a row find the same processes and all of them dead, nothing can be alive:
 * whoever had forked and gone would have left one more. */
static void catch_them(struct killing *killing, pid_t runner)
{
    int64_t until = now_ms() + STEP_MS;
    do {
        struct look now = {0};
        if (!look_below(&now, runner)) {
            forget(&now);
            give_up_catching(killing);
            return;
        }
        bool alive = kill_alive(&now);
        bool caught = !alive && killing->below.all && same(&killing->below, &now);
        forget(&killing->below);
        killing->below = now;
        if (caught) {
            fade(killing, runner);
            return;
        }
    } while (now_ms() < until);
    if (now_ms() > killing->deadline)
        give_up_catching(killing);
}

static bool are_gone(const struct killing *killing)
{
    for (size_t i = 0; i < killing->below.count; i++)
        if (kill(killing->below.all[i].pid, 0) == 0)
            return false;
    return true;
}

/* `runner` is 0 once it was reaped. */
bool kill_step(struct killing *killing, pid_t runner)
{
    if (killing->phase == STOPPING) {
        for (int i = 0; runner && i < 20 && !stands_still(runner); i++)
            usleep(NAP_US);
        if (!runner || stands_still(runner))
            killing->phase = CATCHING;
        else if (now_ms() > killing->deadline)
            give_up_catching(killing);
    }
    if (killing->phase == CATCHING) {
        if (runner)
            catch_them(killing, runner);
        else
            fade(killing, 0);
    }
    bool done = false;
    if (killing->phase == FADING)
        done = (!runner && are_gone(killing)) || now_ms() > killing->deadline;
    else if (killing->phase == EVERYTHING)
        done = !everything.runs;
    if (done)
        forget(&killing->below);
    return done;
}

void everything_begin(void)
{
    if (everything.runs)
        return;
    everything.runs = true;
    everything.deadline = now_ms() + GONE_MS;
}

bool everything_runs(void)
{
    return everything.runs;
}

bool everything_died(void)
{
    return everything.died;
}

void everything_step(void)
{
    if (!everything.runs)
        return;
    bool none = kill(-1, SIGKILL) < 0 && errno == ESRCH;
    if (none || now_ms() > everything.deadline) {
        everything.runs = false;
        everything.died = none;
    }
    wake_within(everything.runs);
}
