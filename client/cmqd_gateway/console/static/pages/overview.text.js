import { count } from '../app/format.js';

const messages = (n) => `${count(n)} ${n === 1 ? 'message' : 'messages'}`;
const times = (n) => (n === 1 ? 'once' : `${count(n)} times`);

export default {
  'overview.title': ['Overview', '概览'],
  'overview.moment': ['Figures of the moment', '当前数据'],
  'overview.live': ['Live', '实时'],
  'overview.paused': ['Waiting for figures', '等待数据'],
  'overview.range': ['Range of the plots', '图表时间范围'],
  'overview.range.15m': ['15 min', '15 分钟'],
  'overview.range.1h': ['1 h', '1 小时'],
  'overview.range.6h': ['6 h', '6 小时'],
  'overview.range.24h': ['24 h', '24 小时'],
  'overview.not-kept': [
    'The figures of the last hours are kept from now on, as the gateway’s own key has not the role read.',
    '网关自身的密钥没有 read 角色，因此历史数据从现在开始保留。',
  ],
  'overview.no-rights': ['Your key cannot read the figures', '当前密钥无法查看统计数据'],
  'overview.no-rights-text': [
    'The overview adds up all queues of account {account}, so it needs a key with the role read and the names *. An administrator of the account can give your key both.',
    '概览汇总账号 {account} 的全部队列，因此需要具有 read 角色且名称范围为 * 的密钥。账号管理员可以为当前密钥授予这些权限。',
  ],
  'overview.empty': ['No queues yet', '还没有队列'],
  'overview.empty-text': [
    'Create a queue and send a message. The message shows here a moment later.',
    '创建一个队列并发送一条消息，片刻之后就能在这里看到它。',
  ],
  'overview.create': ['Create a queue', '创建队列'],

  'overview.sent': ['Sent', '发送'],
  'overview.received': ['Received', '接收'],
  'overview.deleted': ['Deleted', '删除'],
  'overview.published': ['Published', '发布'],
  'overview.delivered': ['Delivered', '投递成功'],
  'overview.failed': ['Failed', '投递失败'],
  'overview.backlog': ['Backlog', '堆积'],
  'overview.active': ['Active', '可接收'],
  'overview.in_flight': ['In flight', '处理中'],
  'overview.delayed': ['Delayed', '延时'],
  'overview.half': ['Half', '半消息'],
  'overview.undelivered': ['Undelivered', '待投递'],
  'overview.undelivered-note': ['{n} undelivered', '{n} 条待投递'],
  'overview.in-flight-note': ['{n} in flight', '{n} 条处理中'],
  'overview.delayed-note': ['{n} delayed', '{n} 条延时'],
  'overview.oldest': ['Oldest message', '最早消息'],
  'overview.ms': ['{n} ms', '{n} 毫秒'],
  'overview.oldest-queue': ['In queues', '队列中'],
  'overview.oldest-topic': ['Undelivered', '待投递'],
  'overview.none': ['none', '无'],
  'overview.commit': ['Commit latency', '提交延迟'],
  'overview.commit-p50': ['Half', '中位数'],
  'overview.commit-p99': ['99 of 100', '99 分位'],
  'overview.commit-note': ['99 of 100 commits; half take {p50}', '99 分位；中位数 {p50}'],
  'overview.no-commits': ['no commits', '无提交'],
  'overview.disk': ['Free disk space', '磁盘剩余空间'],
  'overview.free': ['Free', '剩余'],
  'overview.log': ['Log', '日志'],
  'overview.forecast': ['full {when} at this rate', '按当前速度，{when}将写满'],
  'overview.forecast-none': ['no downward trend', '没有下降趋势'],
  'overview.log-note': ['log {log}, of it history {history}', '日志 {log}，其中历史 {history}'],
  'overview.ephemeral': ['in memory only', '仅存于内存'],
  'overview.connections': ['Connections', '连接'],
  'overview.waiting': ['Waiting receives', '等待中的接收'],
  'overview.waiting-note': [
    ({ n }) => (n === '1' ? '1 waiting receive' : `${n} waiting receives`),
    ({ n }) => `${n} 个等待中的接收`,
  ],
  'overview.objects-note': [
    ({ queues, topics }) => `${queues} ${queues === '1' ? 'queue' : 'queues'}, ${topics} ${topics === '1' ? 'topic' : 'topics'}`,
    ({ queues, topics }) => `${queues} 个队列，${topics} 个主题`,
  ],
  'overview.rates': ['Messages a second', '每秒消息数'],
  'overview.states': ['Messages by state', '各状态消息数'],
  'overview.deliveries': ['Deliveries of topics a second', '主题每秒投递数'],
  'overview.load': ['CPU of the broker', '服务 CPU'],
  'overview.cores': ['Cores', '核'],
  'overview.version': ['cmqd {version}, up for {uptime}, {segments} segments', 'cmqd {version}，已运行 {uptime}，{segments} 个日志段'],

  'overview.top': ['Largest queues', '最大的队列'],
  'overview.queue': ['Queue', '队列'],
  'overview.account': ['Account', '账号'],
  'overview.all-queues': ['All queues', '全部队列'],
  'overview.age': ['Oldest', '最早'],
  'overview.rate-in': ['In', '流入'],
  'overview.rate-out': ['Received', '接收'],

  'overview.findings': ['What needs attention', '需要关注'],
  'overview.all-well': ['Nothing needs attention.', '一切正常，没有需要关注的问题。'],
  'overview.looking': ['Looking …', '正在检查…'],
  'overview.found': [({ n }) => `${count(n)} ${n === 1 ? 'finding' : 'findings'}`, ({ n }) => `${count(n)} 项`],
  'overview.since': ['since {time}', '自 {time}'],
  'overview.more': ['and {n} more of this kind', '另有 {n} 项同类问题'],
  'overview.critical': ['Critical', '严重'],
  'overview.warning': ['Warning', '警告'],
  'overview.notice': ['Notice', '提示'],
  'overview.today': ['today about {time}', '今天 {time} 左右'],
  'overview.tomorrow': ['tomorrow about {time}', '明天 {time} 左右'],
  'overview.weekday': ['on {day} about {time}', '{day} {time} 左右'],
  'overview.date': ['about {day}', '{day}前后'],

  'overview.finding.disk_full_at': [
    'The disk will be full {when}: {free} are free, and {loss} go in an hour.',
    '磁盘将在{when}写满：剩余 {free}，每小时减少 {loss}。',
  ],
  'overview.finding.sends_refused': [
    'Sends are refused: the disk is nearly full, {free} are free. Receives and deletes go on.',
    '磁盘即将写满（剩余 {free}），发送已被拒绝；接收和删除不受影响。',
  ],
  'overview.finding.backup_old': [
    'The last good copy of backup “{backup}” is {age} old. Is the program still running?',
    '备份“{backup}”的最近一份有效副本已是 {age} 前的，请检查备份程序是否仍在运行。',
  ],
  'overview.finding.backup_gap': [
    'Backup “{backup}” has a gap of the last {span}: rows were reclaimed before they were copied.',
    '备份“{backup}”在最近 {span}内出现缺口：部分数据行在复制之前已被回收。',
  ],
  'overview.finding.memory_promised': [
    'Dedup ids and sessions hold {bytes} of {budget} memory; an account with half of it gets no new dedup ids.',
    '去重 ID 和会话占用 {bytes} 内存（预算 {budget}）；占用过半的账号无法再使用新的去重 ID。',
  ],
  'overview.finding.damaged_messages': [
    ({ n, span }) => `${messages(n)} cannot be read; found in the last ${span}. The broker’s log names the rows.`,
    ({ n, span }) => `最近 ${span}内发现 ${count(n)} 条消息无法读取，详情见服务日志。`,
  ],
  'overview.finding.queue_damaged': [({ n }) => `has ${messages(n)} that cannot be read.`, ({ n }) => `有 ${count(n)} 条消息无法读取。`],
  'overview.finding.schedules_missed': [
    ({ n, span }) => `Schedules missed their time ${times(n)} in the last ${span}.`,
    ({ n, span }) => `最近 ${span}内定时任务错过触发 ${count(n)} 次。`,
  ],
  'overview.finding.memory_closed': [
    ({ n, span }) => `The broker closed ${count(n)} ${n === 1 ? 'connection' : 'connections'} in the last ${span}, as its memory was used up.`,
    ({ n, span }) => `最近 ${span}内因内存不足关闭了 ${count(n)} 个连接。`,
  ],
  'overview.finding.commits_slow': [
    'Commits are slow: one in a hundred took {p99} or more in the last {span}.',
    '提交缓慢：最近 {span}内 99 分位延迟为 {p99}。',
  ],
  'overview.finding.loop_late': [
    'The broker is short of CPU: its timers were late by {p99} and more in the last {span}.',
    '服务 CPU 不足：最近 {span}内定时器延迟达 {p99}。',
  ],
  'overview.finding.connections_refused': [
    ({ n, span }) => `The broker refused ${count(n)} ${n === 1 ? 'connection' : 'connections'} in the last ${span}: too many are open.`,
    ({ n, span }) => `连接数已达上限，最近 ${span}内拒绝了 ${count(n)} 个连接。`,
  ],
  'overview.finding.wrong_keys': [
    ({ n, span }) => `Sign-ins with a wrong key: ${count(n)} in the last ${span}.`,
    ({ n, span }) => `最近 ${span}内有 ${count(n)} 次密钥错误的登录。`,
  ],
  'overview.finding.no_consumers': [
    ({ n, grown, span, age }) =>
      grown === undefined
        ? `has ${messages(n)} and was never received from; the oldest waits for ${age}.`
        : `grows without consumers: ${messages(n)}, ${count(grown)} more in ${span}.`,
    ({ n, grown, span, age }) =>
      grown === undefined
        ? `有 ${count(n)} 条消息，但从未有消费者接收；最早一条已等待 ${age}。`
        : `没有消费者且持续增长：共 ${count(n)} 条，${span}内增加 ${count(grown)} 条。`,
  ],
  'overview.finding.consumers_behind': [
    ({ n, grown, span }) => `has consumers that fall behind: ${messages(n)}, ${count(grown)} more in ${span}.`,
    ({ n, grown, span }) => `消费速度跟不上：堆积 ${count(n)} 条，${span}内增加 ${count(grown)} 条。`,
  ],
  'overview.finding.receives_time_out': [
    ({ n, span }) => `Consumers do not finish in time: ${messages(n)} came back after the visibility timeout in the last ${span}.`,
    ({ n, span }) => `消费者处理超时：最近 ${span}内有 ${count(n)} 条消息超过隐藏时长后重新可见。`,
  ],
  'overview.finding.dead_letters_grow': [
    ({ n, more, span }) => `fills with dead letters: ${count(more)} more in the last ${span}, ${count(n)} in all.`,
    ({ n, more, span }) => `死信持续增加：最近 ${span}内新增 ${count(more)} 条，共 ${count(n)} 条。`,
  ],
  'overview.finding.dead_letters_wait': [
    ({ n, age }) => `holds ${count(n)} dead ${n === 1 ? 'letter' : 'letters'}; the oldest was sent ${age} ago.`,
    ({ n, age }) => `有 ${count(n)} 条死信，最早一条发送于 ${age}前。`,
  ],
  'overview.finding.messages_expired': [
    ({ n, span }) => `lost ${messages(n)} unread at the end of the retention in the last ${span}.`,
    ({ n, span }) => `最近 ${span}内有 ${count(n)} 条消息未被消费即过期。`,
  ],
  'overview.finding.near_retention': [
    'The oldest message is {age} old, and messages are kept for {retention}.',
    '最早的消息已有 {age}，消息保留时长为 {retention}，即将过期。',
  ],
  'overview.finding.half_used_up': [
    ({ n, age }) => `${count(n)} half ${n === 1 ? 'message has' : 'messages have'} no checks left and wait for a decision, the oldest for ${age}.`,
    ({ n, age }) => `${count(n)} 条半消息的回查次数已用尽，等待人工提交或回滚，最早一条已等待 ${age}。`,
  ],
  'overview.finding.subscription_blocked': [
    ({ n, url, error }) => `is blocked: deliveries${url} fail${error}, and ${messages(n)} ${n === 1 ? 'waits' : 'wait'}.`,
    ({ n, url, error }) => `已阻塞：投递${url}持续失败${error}，${count(n)} 条消息等待投递。`,
  ],
  'overview.finding.deliveries_fail': [
    ({ n, url, error }) => `Deliveries${url} fail${error}; ${messages(n)} ${n === 1 ? 'is' : 'are'} tried again.`,
    ({ n, url, error }) => `投递${url}失败${error}，${count(n)} 条消息正在重试。`,
  ],
  'overview.finding.deliveries_dropped': [
    ({ n, span }) => `lost ${messages(n)} in the last ${span}: the retries were used up.`,
    ({ n, span }) => `最近 ${span}内有 ${count(n)} 条消息因重试耗尽被丢弃。`,
  ],
  'overview.to-url': [' to {url}', '至 {url} '],
  'overview.with-error': [' with “{error}”', '（错误：{error}）'],
};
