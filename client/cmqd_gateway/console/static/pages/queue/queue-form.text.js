export default {
  'queue-form.create-title': ['Create a queue', '创建队列'],
  'queue-form.edit-title': ['Edit {queue}', '修改队列 {queue}'],
  'queue-form.create': ['Create queue', '创建队列'],
  'queue-form.save': ['Save', '保存'],
  'queue-form.command': ['The same on the command line', '对应的命令'],
  'queue-form.name': ['Name', '队列名'],
  'queue-form.name-hint': [
    '1 to 64 letters, digits, - and _. Unique in the account, also in another case.',
    '1 至 64 个字母、数字、- 或 _，在账号内唯一（不区分大小写）。',
  ],
  'queue-form.name-fault': ['A name has 1 to 64 letters, digits, - or _.', '队列名须为 1 至 64 个字母、数字、- 或 _。'],

  'queue-form.delivery': ['Delivery', '消费'],
  'queue-form.visibility_timeout': ['Visibility timeout', '消息隐藏时长'],
  'queue-form.visibility_timeout-text': [
    'Time that a consumer has for a message. Without a delete the message is active again.',
    '消费者处理一条消息的时间；超时未删除，消息重新可接收。',
  ],
  'queue-form.polling_wait': ['Polling wait', '长轮询等待时间'],
  'queue-form.polling_wait-text': [
    'Wait of a receive that sets none, while the queue is empty.',
    '队列为空时，未指定等待时间的接收请求等待多久。',
  ],
  'queue-form.delay': ['Delay', '默认延时'],
  'queue-form.delay-text': ['Delay of a send that sets none.', '发送时未指定延时的消息的延时。'],

  'queue-form.storage': ['Limits', '容量与保留'],
  'queue-form.retention': ['Retention', '消息保留时间'],
  'queue-form.retention-text': [
    'Life of a message from its send, received or not. Older messages are removed.',
    '消息自发送起的生命周期，到期后无论是否消费都会移除。',
  ],
  'queue-form.max_message_bytes': ['Largest message', '消息最大长度'],
  'queue-form.max_message_bytes-text': ['In bytes of the body; larger sends are refused.', '消息体字节数，超过则拒绝发送。'],
  'queue-form.max_backlog': ['Largest backlog', '最大堆积消息数'],
  'queue-form.max_backlog-text': ['Messages in the queue at which sends are refused.', '堆积达到该数量后拒绝发送。'],
  'queue-form.max_delayed': ['Most delayed messages', '最大延时消息数'],
  'queue-form.max_delayed-text': [
    'Further delayed messages wait in their order for a place.',
    '超出的延时消息按顺序等待空位。',
  ],

  'queue-form.dead-letters': ['Dead letters', '死信队列'],
  'queue-form.policy': ['Give up on a message', '转入死信队列的条件'],
  'queue-form.policy-text': [
    'A message that consumers cannot process moves to another queue, with its origin, and can be redriven later.',
    '无法处理的消息会连同来源信息转入另一个队列，之后可以重新投递。',
  ],
  'queue-form.policy.none': ['Never', '不转入'],
  'queue-form.policy.receives': ['After a number of receives', '接收次数达到上限'],
  'queue-form.policy.age': ['After a time without a delete', '超过时间未被删除'],
  'queue-form.dead_letter_queue': ['Dead-letter queue', '死信队列名'],
  'queue-form.dead_letter_queue-text': [
    'An existing queue, not transactional, without a dead-letter queue of its own. Up to 6 queues can share one.',
    '须为已有的非事务队列，且自身没有死信队列；最多 6 个队列可共用一个死信队列。',
  ],
  'queue-form.dead_letter_max_receives': ['Receives', '最大接收次数'],
  'queue-form.dead_letter_max_receives-text': [
    'The message moves when the lease of this receive ends without a delete.',
    '达到该次数的接收超时未删除后，消息转入死信队列。',
  ],
  'queue-form.dead_letter_after': ['Time', '最长未消费时间'],
  'queue-form.dead_letter_after-text': [
    'Counted from the moment when the message became active; shorter than the retention.',
    '自消息可接收起计算，须短于消息保留时间。',
  ],

  'queue-form.rewinds': ['Rewind', '消息回溯'],
  'queue-form.has_rewind': ['Keep deleted messages for a rewind', '保留已删除的消息以便回溯'],
  'queue-form.has_rewind-text': [
    'Costs disk space: deleted messages stay on disk for the window.',
    '会占用磁盘空间：已删除的消息在回溯窗口内仍保留在磁盘上。',
  ],
  'queue-form.rewind': ['Rewind window', '回溯窗口'],
  'queue-form.rewind-text': [
    'Time from the send of a message in which the message can come back; at most the retention.',
    '自消息发送起可恢复的时间，不超过消息保留时间。',
  ],
  'queue-form.rewind-fault': ['Must not be longer than the retention.', '不得超过消息保留时间。'],
  'queue-form.delay-fault': ['Must be shorter than the retention.', '须短于消息保留时间。'],

  'queue-form.transactions': ['Transactions', '事务消息'],
  'queue-form.transactional': ['Transactional', '事务队列'],
  'queue-form.transactional-text': [
    'Accepts half messages, which become active when their producer commits. Fixed at the creation.',
    '接受半消息，生产者提交后才可接收；创建后不可更改。',
  ],
  'queue-form.first_check': ['First check', '首次回查时间'],
  'queue-form.first_check-text': [
    'Time after which a producer is asked about an undecided half message.',
    '半消息未决定时，多久后首次向生产者回查。',
  ],
  'queue-form.max_checks': ['Most checks', '最大回查次数'],
  'queue-form.max_checks-text': [
    'After these checks the half message waits for a decision by hand.',
    '达到该次数后不再回查，等待人工决定。',
  ],

  'queue-form.unused': ['Unused queue', '闲置队列'],
  'queue-form.is_deleted_unused': ['Delete the queue when it is unused', '闲置后自动删除'],
  'queue-form.is_deleted_unused-text': [
    'For queues of replies and of single workers. A send, a receive or a change of attributes is a use.',
    '适用于应答队列和单个工作进程的队列；发送、接收或修改配置均视为使用。',
  ],
  'queue-form.auto_delete_after': ['Time without use', '闲置时间'],
  'queue-form.auto_delete_after-text': [
    'The queue is deleted after this time without a use.',
    '闲置超过该时间后删除队列。',
  ],
  'queue-form.auto_delete_only_empty': ['Only if it is empty', '仅在队列为空时删除'],
  'queue-form.auto_delete_only_empty-text': [
    'Without this the messages are deleted with the queue.',
    '若不勾选，消息会随队列一起删除。',
  ],
  'queue-form.unused-fault': [
    'A transactional queue, or a queue with a dead-letter queue, cannot be deleted when unused.',
    '事务队列或设置了死信队列的队列不能闲置自动删除。',
  ],
};
