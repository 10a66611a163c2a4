/* Connections accepted in the sandbox and carried to the host, with credit in both directions. */
#include "plimsoll.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PAUSE_MS = 100, LINGER_MS = 30000, BACKLOG = 511 };

struct listener {
    struct listener *next;
    uint32_t number;
    int fd, slot;
    int64_t paused_until;
};

struct tunnel {
    struct tunnel *next;
    uint32_t number;                     /* 0: closed by the host, its last bytes still go out */
    int fd, slot;
    struct inlet in;
    size_t unacknowledged;
    bool peer_ended;                     /* nothing more comes from the sandbox's side */
    bool told_end;
    bool broken;
    int64_t deadline;
};

static struct listener *listeners;
static struct tunnel *tunnels;
static size_t tunnel_count;
static uint32_t next_number = 0x80000000u;

static int open_socket(const char *address, int port, int *bound)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    socklen_t size = sizeof at;
    int on = 1;
    if (inet_pton(AF_INET, address, &at.sin_addr) != 1) {
        errno = EINVAL;
        return -1;
    }
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, (struct sockaddr *)&at, sizeof at) < 0 || listen(fd, BACKLOG) < 0 ||
        getsockname(fd, (struct sockaddr *)&at, &size) < 0) {
        int error = errno;
        close(fd);
        errno = error;
        return -1;
    }
    *bound = ntohs(at.sin_port);
    return fd;
}

static void add_listener(uint32_t number, const char *address, int port)
{
    char words[256];
    int bound;
    struct listener *listener = calloc(1, sizeof *listener);
    int fd = listener ? open_socket(address, port, &bound) : -1;
    if (fd < 0) {
        snprintf(words, sizeof words, "%.64s:%d: %s", address, port, strerror(errno));
        send_end(number, "error", words);
        free(listener);
        return;
    }
    note_descriptor(fd);
    *listener = (struct listener){.next = listeners, .number = number, .fd = fd, .slot = -1};
    listeners = listener;
    snprintf(words, sizeof words, "%d", bound);
    send_end(number, "port", words);
}

void tunnels_listen(uint32_t number, char *payload, size_t size)
{
    char **words = NULL, address[64] = "";
    int port = -1;
    /* The payload is init's own buffer: the byte behind it belongs to the next frame. */
    char kept = payload[size];
    if (split_fields(payload, size, &words) == 2) {
        snprintf(address, sizeof address, "%s", words[0]);
        port = atoi(words[1]);
    }
    payload[size] = kept;
    free(words);
    if (port < 0 || port > 65535)
        send_end(number, "error", "the address to listen on cannot be read");
    else
        add_listener(number, address, port);
}

static struct tunnel *find(uint32_t number)
{
    struct tunnel *tunnel = tunnels;
    while (tunnel && tunnel->number != number)
        tunnel = tunnel->next;
    return number ? tunnel : NULL;
}

void tunnels_data(uint32_t number, const char *bytes, size_t size)
{
    struct tunnel *tunnel = find(number);
    if (!tunnel)
        return;
    if (!size)
        inlet_end(&tunnel->in);
    else if (!inlet_take(&tunnel->in, bytes, size))
        tunnel->broken = true;
}

void tunnels_credit(uint32_t number, uint32_t bytes)
{
    struct tunnel *tunnel = find(number);
    if (tunnel)
        tunnel->unacknowledged -= bytes < tunnel->unacknowledged ? bytes : tunnel->unacknowledged;
}

/* The host is done with a tunnel: what it sent still goes out, then the peer is waited for a
 * while, since closing a socket with unread bytes in it would destroy what was sent. */
static void close_tunnel(struct tunnel *tunnel)
{
    tunnel->number = 0;
    tunnel->deadline = now_ms() + LINGER_MS;
    inlet_end(&tunnel->in);
}

void tunnels_close(uint32_t number)
{
    struct tunnel *tunnel = find(number);
    if (tunnel)
        close_tunnel(tunnel);
    for (struct listener **link = &listeners; *link; link = &(*link)->next) {
        struct listener *listener = *link;
        if (listener->number == number) {
            close(listener->fd);
            *link = listener->next;
            free(listener);
            return;
        }
    }
}

/* Half of the descriptors are left to commands; who connects beyond that waits. */
static bool is_full(void)
{
    return tunnel_count >= most_descriptors() / 2 || host_is_behind();
}

static bool may_send(const struct tunnel *tunnel)
{
    return tunnel->unacknowledged < CREDIT_BYTES && !host_is_behind();
}

void tunnels_watch(void)
{
    for (struct listener *listener = listeners; listener; listener = listener->next) {
        bool paused = listener->paused_until > now_ms();
        if (paused)
            wake_within(PAUSE_MS);
        listener->slot = paused || is_full() ? -1 : watch(listener->fd, POLLIN);
    }
    for (struct tunnel *tunnel = tunnels; tunnel; tunnel = tunnel->next) {
        bool reads = !tunnel->peer_ended && (!tunnel->number || may_send(tunnel));
        tunnel->slot = reads ? watch(tunnel->fd, POLLIN) : -1;
        inlet_watch(&tunnel->in);
        if (!tunnel->number)
            wake_within(tunnel->deadline - now_ms());
    }
}

static bool add_tunnel(const struct listener *listener, int fd)
{
    struct tunnel *tunnel = calloc(1, sizeof *tunnel);
    if (!tunnel)
        return false;
    *tunnel = (struct tunnel){.next = tunnels, .number = next_number++, .fd = fd, .slot = -1};
    inlet_open(&tunnel->in, fd, true);
    tunnels = tunnel;
    tunnel_count++;
    static struct fields fields;
    char number[16];
    fields.used = 0;
    snprintf(number, sizeof number, "%u", (unsigned)listener->number);
    add_text(&fields, number);
    send_frame(CONNECT, tunnel->number, fields.bytes, fields.used);
    return true;
}

static void serve_listener(struct listener *listener)
{
    while (seen(listener->slot) && !is_full()) {
        int on = 1, fd = accept4(listener->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            /* Without descriptors or memory the socket would wake us again and again. */
            if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
                listener->paused_until = now_ms() + PAUSE_MS;
            return;
        }
        note_descriptor(fd);
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        if (!add_tunnel(listener, fd))
            close(fd);
    }
}

static void read_peer(struct tunnel *tunnel)
{
    static char dropped[DATA_BYTES];
    ssize_t got;
    if (tunnel->number) {
        size_t most = CREDIT_BYTES - tunnel->unacknowledged;
        most = most < DATA_BYTES ? most : DATA_BYTES;
        if (!most || host_is_behind())
            return;
        got = send_from(tunnel->fd, OUT, tunnel->number, most);
    } else {
        got = read(tunnel->fd, dropped, sizeof dropped);
    }
    if (got > 0)
        tunnel->unacknowledged += (size_t)got;
    else if (got == 0)
        tunnel->peer_ended = true;
    else if (errno != EAGAIN && errno != EINTR)
        tunnel->broken = true;
}

static void serve_tunnel(struct tunnel *tunnel)
{
    if (seen(tunnel->slot))
        read_peer(tunnel);
    inlet_serve(&tunnel->in, tunnel->number);
    if (tunnel->number && tunnel->peer_ended && !tunnel->told_end && room_for(0)) {
        send_frame(OUT, tunnel->number, NULL, 0);
        tunnel->told_end = true;
    }
}

static bool is_over(const struct tunnel *tunnel)
{
    bool both_ended = tunnel->peer_ended && tunnel->in.fd < 0;
    if (!tunnel->number)
        return both_ended || tunnel->broken || now_ms() > tunnel->deadline;
    return (tunnel->broken || (both_ended && tunnel->told_end)) && room_for(0);
}

void tunnels_serve(void)
{
    for (struct listener *listener = listeners; listener; listener = listener->next)
        serve_listener(listener);
    struct tunnel **link = &tunnels;
    while (*link) {
        struct tunnel *tunnel = *link;
        serve_tunnel(tunnel);
        if (!is_over(tunnel)) {
            link = &tunnel->next;
            continue;
        }
        if (tunnel->number)
            send_frame(CLOSED, tunnel->number, NULL, 0);
        inlet_close(&tunnel->in);
        close(tunnel->fd);
        *link = tunnel->next;
        tunnel_count--;
        free(tunnel);
    }
}
