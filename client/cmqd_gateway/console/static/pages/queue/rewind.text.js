export default {
  'rewind.title': ['Rewind {queue}', '消息回溯：{queue}'],
  'rewind.text': [
    'Each message that was sent at or after the time and has been deleted since becomes active again, in the order of sending, for all consumers. Messages in the queue or in flight stay as they are.',
    '所选时间及之后发送、且已被删除的消息将按发送顺序重新可接收，对所有消费者生效。队列中和处理中的消息不受影响。',
  ],
  'rewind.time': ['Sent since', '回溯起点（发送时间）'],
  'rewind.slider': ['Time on the range', '在时间范围内选择'],
  'rewind.range': [
    'From the oldest message that can come back to the oldest message that is active or in flight, or to now.',
    '从最早可恢复的消息，到队列中最早的未消费消息（没有则到当前时间）。',
  ],
  'rewind.one-time': [
    'An unconsumed message of {time} is older than all deleted messages, so a rewind brings back all of them.',
    '有一条 {time} 发送的未消费消息早于所有已删除消息，因此回溯会恢复全部已删除消息。',
  ],
  'rewind.choices': ['Common times', '常用时间'],
  'rewind.all': ['Everything', '全部'],
  'rewind.ago': ['Last {time}', '最近 {time}'],
  'rewind.count': [
    ({ n, one }) => `${n} ${one ? 'message comes' : 'messages come'} back`,
    ({ n }) => `将恢复 ${n} 条消息`,
  ],
  'rewind.since': ['sent since {time}', '发送时间不早于 {time}'],
  'rewind.button': ['Rewind', '开始回溯'],
  'rewind.done': [
    ({ n, one }) => `${n} ${one ? 'message is' : 'messages are'} active again`,
    ({ n }) => `${n} 条消息已重新可接收`,
  ],
  'rewind.nothing': ['No deleted message can come back.', '没有可恢复的已删除消息。'],
  'rewind.nothing-text': [
    'Consumers have deleted no message within the rewind window, or all of them are back already.',
    '回溯窗口内没有被消费者删除的消息，或已全部恢复。',
  ],
  'rewind.off': ['This queue keeps no deleted messages.', '该队列不保留已删除的消息。'],
  'rewind.off-text': [
    'Set a rewind window first. Messages deleted before that stay deleted.',
    '请先设置回溯窗口；此前已删除的消息无法恢复。',
  ],
};
