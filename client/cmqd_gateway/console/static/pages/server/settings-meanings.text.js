export default {
  'settings.meaning.data': [
    'data folder: log, accounts and keys; created at the first start, used by one broker at a time',
    '数据目录：日志、账号和密钥；首次启动时创建，同一时间只能由一个服务使用',
  ],
  'settings.meaning.region': [
    'name of the region that this broker serves; a client can refuse any other region',
    '本服务所在地域的名称；客户端可以拒绝连接其他地域',
  ],
  'settings.meaning.durability': [
    'fsync: an answer survives power loss; os: an answer survives a crash of the broker only',
    'fsync：应答的数据在断电后不丢失；os：应答的数据仅在服务进程崩溃后不丢失',
  ],
  'settings.meaning.redundancy': [
    'none: the data folder has the log; postgresql: a PostgreSQL primary and its synchronous standby have the log, and a second broker with the same engine_url is the standby',
    'none：日志在数据目录中；postgresql：日志由 PostgreSQL 主库及其同步备库保存，使用相同 engine_url 的第二个服务为备用服务',
  ],
  'settings.meaning.engine_url': [
    'with redundancy: URL of the PostgreSQL servers, postgresql://USER:PASSWORD@HOST1,HOST2/DATABASE',
    '启用冗余时：PostgreSQL 服务器的 URL，postgresql://USER:PASSWORD@HOST1,HOST2/DATABASE',
  ],
  'settings.meaning.ephemeral': [
    'keep messages in memory only; accounts and keys stay in the data folder',
    '消息只保存在内存中；账号和密钥仍保存在数据目录',
  ],
  'settings.meaning.accept_loss': [
    'start with a damaged log: damaged parts are set aside and reported',
    '日志损坏时仍然启动：损坏部分会被隔离并报告',
  ],
  'settings.meaning.group_readable': [
    'let the group of the data folder read the log: new folders get files of mode 0640, not 0600',
    '允许数据目录的用户组读取日志：新目录中文件的权限为 0640，而不是 0600',
  ],
  'settings.meaning.adopt_wall_clock': [
    'set broker time to the wall clock at the start if they differ by more than a minute',
    '启动时若服务时间与系统时间相差超过一分钟，则将服务时间设为系统时间',
  ],
  'settings.meaning.listen': [
    'address and port; port 0 picks a free one, [::1]:5680 for IPv6',
    '监听地址和端口；端口 0 表示任选空闲端口，IPv6 写作 [::1]:5680',
  ],
  'settings.meaning.http': [
    'address and port of an HTTP gateway that the broker runs as a child process, HTTPS if TLS is on; none: no gateway. Needs the extra gateway',
    '由服务作为子进程运行的 HTTP 网关的地址和端口，启用 TLS 时为 HTTPS；不设置则没有网关。需要安装 gateway 扩展',
  ],
  'settings.meaning.http_config': [
    'TOML file with further settings of the gateway, named as the flags of cmqd-gateway',
    '网关其他配置的 TOML 文件，名称与 cmqd-gateway 的命令行参数相同',
  ],
  'settings.meaning.advertise': [
    'host or host:port that the broker reports to clients as its address; none: the host of listen, or the name of the machine',
    '服务向客户端报告的地址，host 或 host:port；不设置则使用 listen 中的主机或本机名称',
  ],
  'settings.meaning.shard': [
    'number of the shard that this broker serves, the upper 12 bits of its message ids; never changes for a data folder with messages',
    '本服务负责的分片编号，即消息 ID 的高 12 位；数据目录中已有消息后不可更改',
  ],
  'settings.meaning.tls_certificate': [
    'PEM file with the certificate chain; together with tls_key, the certificate turns TLS on',
    '证书链的 PEM 文件；与 tls_key 一起设置后启用 TLS',
  ],
  'settings.meaning.tls_key': [
    'PEM file with the private key of tls_certificate',
    'tls_certificate 对应私钥的 PEM 文件',
  ],
  'settings.meaning.max_frame_bytes': [
    'largest frame that the server proposes',
    '服务建议的最大帧长度',
  ],
  'settings.meaning.heartbeat_ms': [
    'interval of heartbeats that the server proposes; a connection that is silent for two intervals is closed',
    '服务建议的心跳间隔；连续两个间隔没有数据的连接会被关闭',
  ],
  'settings.meaning.authentication_timeout_ms': [
    'time limit from connecting to the end of the log-in',
    '从建立连接到登录完成的时限',
  ],
  'settings.meaning.context_file': [
    'file for address and key of the administrator, as cmq reads them; none: admin.context.toml in the data folder. With redundancy each broker writes the addresses of both brokers, and they may share the file',
    '写入管理员地址和密钥的文件，供 cmq 读取；留空：数据目录中的 admin.context.toml。启用冗余时，每个服务都写入两个服务的地址，可共用该文件',
  ],
  'settings.meaning.ready_file': [
    'file for one JSON line (host, port, pid, ...) that is written when the server accepts connections',
    '服务开始接受连接时写入一行 JSON（host、port、pid 等）的文件',
  ],
  'settings.meaning.max_connections': [
    'connections in total; 0 = as many as the descriptors of the process allow',
    '连接总数；0 表示由进程可用的文件描述符数量决定',
  ],
  'settings.meaning.max_connections_per_account': [
    'connections of one account; 0 = no limit',
    '单个账号的连接数；0 表示不限制',
  ],
  'settings.meaning.max_waiting_receives_per_account': [
    'waiting receives (long polls) of one account; 0 = no limit',
    '单个账号等待中的长轮询数；0 表示不限制',
  ],
  'settings.meaning.max_requests_per_second_per_account': [
    'requests per second of one account, with a burst of one second; 0 = no limit',
    '单个账号每秒的请求数，允许一秒的突发；0 表示不限制',
  ],
  'settings.meaning.max_requests_per_connection': [
    'unanswered requests on one connection; further requests are refused as too_many_requests',
    '单个连接上未应答的请求数；超出的请求以 too_many_requests 拒绝',
  ],
  'settings.meaning.max_queues_per_account': [
    'queues of one account',
    '单个账号的队列数',
  ],
  'settings.meaning.max_topics_per_account': [
    'topics of one account',
    '单个账号的主题数',
  ],
  'settings.meaning.max_in_flight_per_queue': [
    'messages in flight in one queue (about 200 bytes of memory each); further receives are refused as too_many_in_flight',
    '单个队列中处理中的消息数（每条约占 200 字节内存）；超出的接收以 too_many_in_flight 拒绝',
  ],
  'settings.meaning.max_delay_ms': [
    'longest delay of a send; a delay must also be shorter than the retention of its queue; CMQ allows one hour',
    '发送消息的最长延时；延时还须短于队列的消息保留时间；CMQ 的上限为一小时',
  ],
  'settings.meaning.push_timeout_ms': [
    'time limit of a push, from its start to its answer; a push without an answer has failed',
    '一次推送从开始到应答的时限；没有应答的推送视为失败',
  ],
  'settings.meaning.push_allow_private': [
    'allow pushes to addresses of private networks (10.0.0.0/8, fc00::/7 and similar)',
    '允许推送到内网地址（10.0.0.0/8、fc00::/7 等）',
  ],
  'settings.meaning.push_allow_loopback': [
    'allow pushes to the broker\'s own machine (127.0.0.0/8, ::1)',
    '允许推送到服务所在的机器（127.0.0.0/8、::1）',
  ],
  'settings.meaning.push_user_agent': [
    'User-Agent of pushes, up to 256 printable ASCII characters; none: cmqd/ and the version',
    '推送请求的 User-Agent，最多 256 个可打印 ASCII 字符；留空：cmqd/ 加版本号',
  ],
  'settings.meaning.max_pushes_per_endpoint': [
    'concurrent pushes to one endpoint',
    '对同一地址并发推送的数量',
  ],
  'settings.meaning.max_pushes': [
    'concurrent pushes in total',
    '并发推送的总数',
  ],
  'settings.meaning.memory_budget_bytes': [
    'memory for unfinished frames, unread replies, sessions, dedup ids and schedules of clients, at least 128 MiB; 0 = a quarter of the memory of the machine or container; an account may use a quarter of the budget',
    '客户端的未完成帧、未读应答、会话、去重 ID 和定时任务可用的内存，至少 128 MiB；0 表示机器或容器内存的四分之一；单个账号最多使用其中的四分之一',
  ],
  'settings.meaning.busy_pending_bytes': [
    'bytes waiting for the disk at which sends are refused as busy',
    '等待写盘的字节数达到该值时，发送以 busy 拒绝',
  ],
  'settings.meaning.busy_pending_records': [
    'records waiting for the disk at which sends are refused as busy',
    '等待写盘的记录数达到该值时，发送以 busy 拒绝',
  ],
  'settings.meaning.pause_pending_bytes': [
    'bytes waiting for the disk at which the server stops reading from clients',
    '等待写盘的字节数达到该值时，服务暂停读取客户端请求',
  ],
  'settings.meaning.pause_pending_records': [
    'records waiting for the disk at which the server stops reading from clients',
    '等待写盘的记录数达到该值时，服务暂停读取客户端请求',
  ],
  'settings.meaning.slow_reader_bytes': [
    'unread bytes of a connection at which the server stops reading its requests (any number, if all bytes are received messages)',
    '单个连接未读字节数达到该值时，服务暂停读取其请求（未读内容全部为已接收消息时不受此限）',
  ],
  'settings.meaning.max_unread_bytes': [
    'unread bytes at which the server closes the connection',
    '单个连接未读字节数达到该值时，服务关闭该连接',
  ],
  'settings.meaning.max_unread_receives': [
    'unread replies with messages on one connection (about 1 MiB each at most); further receives wait',
    '单个连接上未读的含消息应答数（每个最多约 1 MiB）；更多的接收需等待',
  ],
  'settings.meaning.segment_bytes': [
    'size at which a segment of the log is retired and the next segment begins',
    '日志段达到该大小后停止写入，并开始下一个日志段',
  ],
  'settings.meaning.segment_age_ms': [
    'age at which a segment with rows is retired',
    '含有数据的日志段达到该时长后停止写入',
  ],
  'settings.meaning.keep_history_ms': [
    'time for which a segment without needed messages is kept after its last row, for replay and other readers of the log; 0 = not kept',
    '不再含有所需消息的日志段，自最后一行写入起保留的时间，供回放和其他日志读取者使用；0 表示不保留',
  ],
  'settings.meaning.min_free_bytes': [
    'free bytes of the disk, beside the space for seals and deletes, below which sends are refused; receives and deletes continue',
    '除封存和删除所需空间外，磁盘剩余空间低于该值时拒绝发送；接收和删除继续可用',
  ],
  'settings.meaning.storage_patience_ms': [
    'time after which a request that waits for the disk is answered outcome_unknown, and new requests are refused until the disk responds',
    '等待写盘的请求超过该时间后以 outcome_unknown 应答，并拒绝新请求，直到磁盘恢复响应',
  ],
  'settings.meaning.drain_timeout_ms': [
    'time limit from SIGTERM to the end of the process',
    '从收到 SIGTERM 到进程结束的时限',
  ],
  'settings.meaning.log_format': [
    'log lines as key=value or as JSON objects',
    '日志格式：key=value 文本或 JSON 对象',
  ],
  'settings.meaning.log_level': [
    'lowest severity of log lines that are written',
    '写入日志的最低级别',
  ],
};
