/* What one round of the loop waits for. */
#include "plimsoll.h"

#include <poll.h>
#include <stdlib.h>
#include <time.h>

static struct pollfd *watched;
static size_t count, room;
static int64_t timeout; /* -1: none */

int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

void watch_nothing(void)
{
    count = 0;
    timeout = -1;
}

void wake_within(int64_t milliseconds)
{
    if (timeout < 0 || milliseconds < timeout)
        timeout = milliseconds < 0 ? 0 : milliseconds;
}

/* A descriptor that waits for nothing may still be given: its end is seen. */
int watch(int fd, short events)
{
    if (count == room) {
        size_t larger = room ? room * 2 : 64;
        struct pollfd *grown = realloc(watched, larger * sizeof *grown);
        if (!grown) {
            wake_within(50); /* it has its turn when there is memory again */
            return -1;
        }
        watched = grown;
        room = larger;
    }
    watched[count] = (struct pollfd){.fd = fd, .events = events};
    return (int)count++;
}

short seen(int slot)
{
    return slot < 0 ? 0 : watched[slot].revents;
}

bool watch_wait(void)
{
    if (poll(watched, count, (int)timeout) >= 0)
        return true;
    for (size_t i = 0; i < count; i++)
        watched[i].revents = 0;
    return false;
}
