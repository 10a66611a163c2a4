/* Bytes of the host on their way to a pipe or a socket, with credit for what went through. */
#include "plimsoll.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct chunk {
    struct chunk *next;
    size_t size, done;
    char bytes[];
};

void inlet_open(struct inlet *inlet, int fd, bool is_socket)
{
    *inlet = (struct inlet){.fd = fd, .slot = -1, .is_socket = is_socket};
}

void inlet_drop(struct inlet *inlet)
{
    while (inlet->first) {
        struct chunk *chunk = inlet->first;
        inlet->first = chunk->next;
        free(chunk);
    }
    inlet->last = NULL;
    inlet->owed += (uint32_t)inlet->held;
    inlet->held = 0;
}

/* A socket stays open: it is also read from, by its tunnel. */
static void stop(struct inlet *inlet)
{
    if (inlet->fd < 0)
        return;
    if (inlet->is_socket)
        shutdown(inlet->fd, SHUT_WR);
    else
        close(inlet->fd);
    inlet->fd = -1;
}

void inlet_close(struct inlet *inlet)
{
    inlet_drop(inlet);
    stop(inlet);
}

/* As many bytes as go now. Where the other side is gone, all of them are dropped. */
static size_t push(struct inlet *inlet, const char *bytes, size_t size)
{
    ssize_t sent = write(inlet->fd, bytes, size);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) {
        inlet_close(inlet);
        sent = (ssize_t)size;
    }
    if (sent < 0)
        return 0;
    inlet->owed += (uint32_t)sent;
    return (size_t)sent;
}

static bool hold(struct inlet *inlet, const char *bytes, size_t size)
{
    struct chunk *chunk = malloc(sizeof *chunk + size);
    if (!chunk)
        return false;
    *chunk = (struct chunk){.size = size};
    memcpy(chunk->bytes, bytes, size);
    if (inlet->last)
        inlet->last->next = chunk;
    else
        inlet->first = chunk;
    inlet->last = chunk;
    inlet->held += size;
    return true;
}

/* False where there is no memory, or more was sent than there was credit for. */
bool inlet_take(struct inlet *inlet, const char *bytes, size_t size)
{
    if (inlet->fd < 0 || inlet->ending) {
        inlet->owed += (uint32_t)size;
        return true;
    }
    if (inlet->held + size > CREDIT_BYTES)
        return false;
    size_t sent = inlet->held ? 0 : push(inlet, bytes, size);
    return sent == size || hold(inlet, bytes + sent, size - sent);
}

static void flush(struct inlet *inlet)
{
    while (inlet->first && inlet->fd >= 0) {
        struct chunk *chunk = inlet->first;
        size_t left = chunk->size - chunk->done;
        ssize_t sent = write(inlet->fd, chunk->bytes + chunk->done, left);
        if (sent < 0) {
            if (errno != EAGAIN && errno != EINTR)
                inlet_close(inlet);
            return;
        }
        chunk->done += (size_t)sent;
        inlet->held -= (size_t)sent;
        inlet->owed += (uint32_t)sent;
        if (chunk->done < chunk->size)
            return;
        inlet->first = chunk->next;
        if (!inlet->first)
            inlet->last = NULL;
        free(chunk);
    }
}

void inlet_end(struct inlet *inlet)
{
    inlet->ending = true;
    if (!inlet->held)
        stop(inlet);
}

void inlet_watch(struct inlet *inlet)
{
    /* Watched only while it holds something: a pipe nobody reads would wake us for ever. */
    inlet->slot = inlet->fd >= 0 && inlet->held ? watch(inlet->fd, POLLOUT) : -1;
}

void inlet_serve(struct inlet *inlet, uint32_t number)
{
    if (seen(inlet->slot)) {
        flush(inlet);
        if (inlet->ending && !inlet->held)
            stop(inlet);
    }
    if (number && inlet->owed && room_for(4)) {
        send_number(CREDITED, number, inlet->owed);
        inlet->owed = 0;
    }
}
